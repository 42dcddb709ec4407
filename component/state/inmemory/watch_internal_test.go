package inmemory

import (
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
)

// trim must not move the changes that stay: each write would then take as long as the history is large.
func TestHistory_TrimDoesNotMoveChanges(t *testing.T) {
	h := &history{changes: make([]state.Change, 3, 8), stamps: []int64{1, 2, 3}}
	for i := range h.changes {
		h.changes[i] = state.Change{Item: state.Item{Key: "k", Value: []byte("1")}, Revision: uint64(i + 1)}
		h.bytes += sizeOf(&h.changes[i])
	}
	first, second := &h.changes[0], &h.changes[1]
	h.trim(state.HistoryBounds{Bytes: h.bytes - 1, Age: time.Hour}, 3)
	if len(h.changes) != 2 || len(h.stamps) != 2 || h.stamps[0] != 2 || h.floor != 1 {
		t.Fatalf("the history is %+v", h)
	}
	if &h.changes[0] != second || second.Revision != 2 {
		t.Error("a change that stays was moved")
	}
	if first.Value != nil {
		t.Error("the value of a dropped change is still in memory")
	}
}
