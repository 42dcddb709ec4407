package raftlog

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/quorate/quorate/internal/fault"
)

// sealedOnce is a log that refuses appends like raft-wal after a failure to add a segment. Close and reading work.
type sealedOnce struct{ Backend }

func (s sealedOnce) StoreLogs([]*raft.Log) error { return wal.ErrSealed }

// The name of a data directory may contain special characters of file patterns, even in a malformed pattern.
func TestSegments_AreFoundBelowADirectoryWithBrackets(t *testing.T) {
	for _, name := range []string{"data[1]", "data[1"} {
		dir := filepath.Join(t.TempDir(), name)
		path := filepath.Join(dir, WalName)
		must(t, os.MkdirAll(path, 0o700))
		e, err := openWAL(path, slog.New(slog.DiscardHandler))
		must(t, err)
		must(t, e.StoreLog(&raft.Log{Index: 1, Term: 1, Data: []byte("v")}))
		must(t, e.Close())
		must(t, CheckWALFormat(path))
		if file := FileOf(dir, WAL, 1); filepath.Ext(file) != ".wal" {
			t.Errorf("entry 1 is in %s, want a segment", file)
		}
		segments, err := segmentsIn(path)
		must(t, err)
		f, err := os.OpenFile(segments[0], os.O_RDWR, 0)
		must(t, err)
		_, err = f.WriteAt([]byte{walFormat + 1}, 7)
		must(t, errors.Join(err, f.Close()))
		if err := CheckWALFormat(path); !fault.Is(err, fault.Invalid) {
			t.Errorf("a segment of a newer format: %v", err)
		}
	}
}

func TestWALEngine_ReopensSealedLogAndAppendsOnce(t *testing.T) {
	e, err := openWAL(t.TempDir(), slog.New(slog.DiscardHandler))
	must(t, err)
	for i := uint64(1); i <= 5; i++ {
		must(t, e.StoreLog(&raft.Log{Index: i, Term: 1, Data: []byte("v")}))
	}
	e.wal = sealedOnce{e.wal}
	must(t, e.StoreLog(&raft.Log{Index: 6, Term: 1, Data: []byte("six")}))
	must(t, e.StoreLog(&raft.Log{Index: 7, Term: 1, Data: []byte("seven")}))
	if last, err := e.LastIndex(); err != nil || last != 7 {
		t.Fatalf("the log ends at %d, %v", last, err)
	}
	for i := uint64(1); i <= 7; i++ {
		var l raft.Log
		must(t, e.GetLog(i, &l))
		if l.Index != i {
			t.Errorf("entry %d has index %d", i, l.Index)
		}
	}
	must(t, e.DeleteRange(6, 7))
	must(t, e.StoreLog(&raft.Log{Index: 6, Term: 2, Data: []byte("other")}))
	must(t, e.Close())
}
