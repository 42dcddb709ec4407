package raftlog

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// A crash between raft's two writes of a vote combines the new term with the candidate of the earlier vote. This
// candidate would then get the vote of the new term without a check of its log.
func TestHazard_CrashTearsVote(t *testing.T) {
	open := func(path string) *raftboltdb.BoltStore {
		s, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
		must(t, err)
		t.Cleanup(func() { must(t, s.Close()) })
		return s
	}
	path := filepath.Join(t.TempDir(), "stable.db")
	s := open(path)
	must(t, s.SetUint64([]byte(keyLastVoteTerm), 4))
	must(t, s.Set([]byte(keyLastVoteCand), []byte("old")))
	must(t, s.SetUint64([]byte(keyLastVoteTerm), 5))
	image := filepath.Join(t.TempDir(), "stable.db")
	testutil.CopyTree(t, path, image)
	must(t, s.Set([]byte(keyLastVoteCand), []byte("new")))
	crashed := open(image)
	term, err := crashed.GetUint64([]byte(keyLastVoteTerm))
	must(t, err)
	candidate, err := crashed.Get([]byte(keyLastVoteCand))
	must(t, err)
	if term != 5 || string(candidate) != "old" {
		t.Errorf("term %d for %q: the hazard does not show", term, candidate)
	}
}

func TestOpen_SecondFailsWhereLibraryHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.db")
	first, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
	must(t, err)
	if _, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()}); err == nil {
		t.Fatal("the same log is open twice")
	} else {
		wantCode(t, DiskError(err, path), fault.Unavailable)
	}
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		if s, err := raftboltdb.NewBoltStore(path); err == nil {
			_ = s.Close()
		}
	}()
	if !still(t, opened) {
		t.Error("the library's own open returns: the hazard does not show")
	}
	must(t, first.Close())
	<-opened
}

// The engines return an altered entry, because they do not know its checksum. The Store detects the change.
func TestHazard_EnginesReturnAlteredEntry(t *testing.T) {
	engines(t, func(t *testing.T, e Engine) {
		engine, err := openEngine(t.TempDir(), e, slog.New(slog.DiscardHandler))
		must(t, err)
		defer engine.Close()
		l := &raft.Log{Index: 1, Term: 1, Data: []byte("as written")}
		Seal(l)
		l.Data = []byte("as altered")
		must(t, engine.StoreLog(l))
		var got raft.Log
		if err := engine.GetLog(1, &got); err != nil || string(got.Data) != "as altered" {
			t.Errorf("%q, %v: the hazard does not show", got.Data, err)
		}
		var told error
		s := logsOver(engine, &seams{fatal: func(err error) { told = err }})
		wantCode(t, s.GetLog(1, &got), fault.Corrupt)
		wantCode(t, told, fault.Corrupt)
	})
}
