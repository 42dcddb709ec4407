package raftlog

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

func sealed() *raft.Log {
	l := &raft.Log{Index: 7, Term: 3, Type: raft.LogCommand, Data: []byte("some data of an entry")}
	Seal(l)
	return l
}

func TestSeal_VerifyRefusesAlteredEntry(t *testing.T) {
	must(t, Verify(sealed()))
	alter := map[string]func(*raft.Log){
		"index":              func(l *raft.Log) { l.Index++ },
		"term":               func(l *raft.Log) { l.Term++ },
		"index into term":    func(l *raft.Log) { l.Index, l.Term = l.Term, l.Index },
		"type":               func(l *raft.Log) { l.Type = raft.LogNoop },
		"data gone":          func(l *raft.Log) { l.Data = nil },
		"data longer":        func(l *raft.Log) { l.Data = append(l.Data, 0) },
		"data shorter":       func(l *raft.Log) { l.Data = l.Data[:len(l.Data)-1] },
		"no seal":            func(l *raft.Log) { l.Extensions = nil },
		"seal cut":           func(l *raft.Log) { l.Extensions = l.Extensions[:sealSize-1] },
		"seal longer":        func(l *raft.Log) { l.Extensions = append(l.Extensions, 0) },
		"seal of a version":  func(l *raft.Log) { l.Extensions[1]++ },
		"seal of another":    func(l *raft.Log) { o := *l; o.Index++; Seal(&o); l.Extensions = o.Extensions },
		"somebody elses tag": func(l *raft.Log) { l.Extensions = []byte{0xaf, 0xd1, 0xf9, 0xd6, 0x03, 0x92} },
	}
	for name, f := range alter {
		l := sealed()
		f(l)
		if err := Verify(l); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for i := range sealed().Data {
		for bit := range 8 {
			l := sealed()
			l.Data[i] ^= 1 << bit
			if err := Verify(l); !fault.Is(err, fault.Corrupt) {
				t.Fatalf("data byte %d bit %d: got %v", i, bit, err)
			}
		}
	}
	for i := range sealSize {
		for bit := range 8 {
			l := sealed()
			l.Extensions[i] ^= 1 << bit
			if err := Verify(l); !fault.Is(err, fault.Corrupt) {
				t.Fatalf("checksum byte %d bit %d: got %v", i, bit, err)
			}
		}
	}
}

// openTestLogs opens a log store over an engine in dir.
func openTestLogs(t testing.TB, dir string, e Engine, fatal func(error)) *Store {
	t.Helper()
	engine, err := openEngine(dir, e, slog.New(slog.DiscardHandler))
	must(t, err)
	l := logsOver(engine, &seams{fatal: fatal})
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

func TestSeal_IsVerifiedByGetLog(t *testing.T) {
	engines(t, func(t *testing.T, e Engine) {
		var fatal []error
		l := openTestLogs(t, t.TempDir(), e, func(err error) { fatal = append(fatal, err) })
		for i, typ := range []raft.LogType{raft.LogConfiguration, raft.LogNoop, raft.LogBarrier, raft.LogCommand} {
			must(t, l.StoreLogs([]*raft.Log{{Index: uint64(i + 1), Term: 2, Type: typ,
				Data: bytes.Repeat([]byte{byte(i)}, i*100)}}))
		}
		bad := &raft.Log{Index: 5, Term: 2, Type: raft.LogCommand, Data: []byte("as it was")}
		Seal(bad)
		bad.Data = []byte("as it is!")
		must(t, l.engine.StoreLogs([]*raft.Log{bad})) // like damage on disk
		l.tail.forget(5)                              // so that the entry is read from the disk
		var got raft.Log
		for i := range uint64(4) {
			must(t, l.GetLog(i+1, &got))
			if got.Index != i+1 || len(got.Data) != int(i)*100 {
				t.Errorf("entry %d came back as %d with %d bytes", i+1, got.Index, len(got.Data))
			}
		}
		if len(fatal) > 0 {
			t.Fatalf("fatal for a good entry: %v", fatal)
		}
		wantCode(t, l.GetLog(5, &got), fault.Corrupt)
		if len(fatal) != 1 {
			t.Errorf("an altered entry of this disk must end the process, fatal was called %d times", len(fatal))
		}
	})
}

func TestStoreLogs_RefusesAlteredEntryWithoutFatal(t *testing.T) {
	l := openTestLogs(t, t.TempDir(), BoltDB, func(err error) { t.Errorf("fatal: %v", err) })
	good, bad := sealed(), sealed()
	good.Index = 1
	Seal(good)
	bad.Data[3] ^= 1
	wantCode(t, l.StoreLogs([]*raft.Log{good, bad}), fault.Corrupt)
	if last, err := l.LastIndex(); last != 0 || err != nil {
		t.Errorf("a part of a refused append was stored: last %d, %v", last, err)
	}
}

func TestSeal_CarriesEarlyAcknowledgements(t *testing.T) {
	mine, other := serverTag("n1.a"), serverTag("n2.a")
	l := raft.Log{Index: 3, Term: 2, Type: raft.LogCommand, Data: []byte("x"), Extensions: owing(mine, 7)}
	Seal(&l)
	if err := Verify(&l); err != nil || owed(&l, mine) != 7 || owed(&l, other) != 0 {
		t.Fatalf("%v, owed %d and %d", err, owed(&l, mine), owed(&l, other))
	}
	for i := range l.Extensions {
		for bit := range 8 {
			l.Extensions[i] ^= 1 << bit
			if Verify(&l) == nil {
				t.Fatalf("a flip of bit %d in byte %d was not detected", bit, i)
			}
			l.Extensions[i] ^= 1 << bit
		}
	}
	plain := raft.Log{Data: []byte("x"), Extensions: owing(mine, 0)}
	if Seal(&plain); owed(&plain, mine) != 0 || len(plain.Extensions) != sealSize {
		t.Errorf("an entry without early acknowledgements: %v", plain.Extensions)
	}
}
