package watches

import (
	"testing"

	"github.com/quorate/quorate/component/state"
)

// A client that continued from a bookmark within a snapshot would never get the items after the bookmark.
func TestStream_NoBookmarkWithinASnapshot(t *testing.T) {
	s := &Stream{Snapshot: true}
	if b := finishChunk(s.appendPart(beginChunk(nil), &state.WatchPart{}), 0); len(b) > 0 {
		t.Errorf("a part of a snapshot without matching items is sent as %q", b)
	}
}
