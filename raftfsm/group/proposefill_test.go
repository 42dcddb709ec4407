package group

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/raftfsm/command"
)

// While the first entry is written, the second entry waits for raft's main loop and takes requests until it is full.
// The third entry takes the rest. If the first entry finishes too early, requests may be in other entries. So the test
// needs only one success in ten attempts.
func TestPropose_EntryTakesWhatArrivesUntilItIsWritten(t *testing.T) {
	g, disk := heldGroup(t, func(o *Options) { o.Bounds.Window, o.Bounds.EntryCount = 2, 4 })
	var got []int
	for range 10 {
		from := g.LastIndex() + 1
		first := clog(t, g, disk)
		var requests []*command.Request
		for i := range 5 {
			requests = append(requests, setRequest("k", fmt.Sprint(i)))
		}
		rest := proposeAll(t, g, limited(t), Committed, requests...)
		disk.open()
		for range cap(first) {
			must(t, (<-first).err)
		}
		for range requests {
			must(t, (<-rest).err)
		}
		if got, _ = entries(t, g, from); cmp.Equal([]int{1, 4, 2}, got) {
			return
		}
	}
	t.Errorf("the entries have %v requests", got)
}

// While the queue is paused, an entry that is already in flight takes no further requests.
func TestPropose_PausedEntryTakesNothing(t *testing.T) {
	g, disk := heldGroup(t, func(o *Options) { o.Bounds.Window = 2 })
	from := g.LastIndex() + 1
	first := clog(t, g, disk)
	resume := g.proposer.pause()
	rest := proposeAll(t, g, limited(t), Committed, setRequest("k", "v"))
	disk.open()
	for range cap(first) {
		must(t, (<-first).err)
	}
	if n := queuedCount(g); n != 1 {
		t.Errorf("%d requests are in the queue", n)
	}
	resume()
	must(t, (<-rest).err)
	got, _ := entries(t, g, from)
	if d := cmp.Diff([]int{1, 1, 1}, got); d != "" {
		t.Error(d)
	}
}
