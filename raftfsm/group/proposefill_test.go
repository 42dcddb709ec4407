package group

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/raftfsm/command"
)

// While an entry is written, the next one waits for raft's main loop and takes what arrives. If the answers of the
// first entry come before raft's main loop goes on, an entry after the next one takes it. So one of several attempts
// has to succeed.
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

// A step that pauses the queue must find nothing of it in later entries.
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
