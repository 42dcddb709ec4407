package raftlog

import (
	"log/slog"
	"testing"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// sealedOnce is a log that refuses its next append.
type sealedOnce struct{ Backend }

func (s sealedOnce) StoreLogs([]*raft.Log) error { return wal.ErrSealed }

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
