package group

import (
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/raftlog"
)

// A server must never fill an entry of another leader with its own requests. Entries of other leaders always have a
// valid checksum. So a placeholder must not have a valid checksum, and an entry with one must not look like a
// placeholder.
func TestPlaceholder_IsNoEntryOfAnotherLeader(t *testing.T) {
	l := placeholder(7)
	if n, ok := batchNumber(&l); !ok || n != 7 {
		t.Errorf("the placeholder of batch 7 reads as batch %d, %t", n, ok)
	}
	if err := raftlog.Verify(&l); err == nil {
		t.Error("a placeholder is accepted from another leader")
	}
	sealed := raft.Log{Index: 1, Term: 1, Data: []byte("x")}
	raftlog.Seal(&sealed)
	if n, ok := batchNumber(&sealed); ok {
		t.Errorf("an entry with a checksum reads as batch %d", n)
	}
}
