package raftfsm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/raftfsm"
)

// A leader that hangs answers nobody. Who waits for it goes on as soon as there is another
// leader, not when his own time is over, and what reaches the old one late is not done again.
func TestWhoWaitsForALeaderThatHangsGoesOnWithTheNextOne(t *testing.T) {
	for name, sidecar := range map[string]bool{"at a server": false, "at a sidecar": true} {
		t.Run(name, func(t *testing.T) { goesOn(t, sidecar) })
	}
}

type outcome struct {
	etag string
	err  error
}

func goesOn(t *testing.T, sidecar bool) {
	c := startCluster(t, 3, nil)
	var h *raftfsm.Host
	if sidecar {
		h, _ = c.sidecar("side")
	}
	for n := 0; ; n++ {
		lead := c.leader()
		if !sidecar {
			h = c.others(lead)[0]
		}
		if waitsOut(t, c, h, lead, fmt.Sprint("app||new", n)) {
			return
		}
		t.Log("the leader had changed before it was asked: once more")
	}
}

// waitsOut has h write key and read while lead hangs. It is false if that never came to
// pass, because another server led by then.
func waitsOut(t *testing.T, c *cluster, h, lead *raftfsm.Host, key string) bool {
	const patience = 2 * time.Minute // who waits for as long as it may gets an error
	eventually(t, func() error { return h.Ready(0) })
	s := h.Store("", "s")
	set(t, s, "app||before", "v", state.Strong) // now the node has an origin

	hangs := make(chan string, 64)
	old := lead.Identity().Server
	c.mu.Lock()
	c.hangs[old] = hangs
	c.mu.Unlock()
	wrote, read := make(chan outcome, 1), make(chan outcome, 1)
	go func() {
		w, err := s.Set(within(t, patience), state.SetRequest{Items: []state.Write{{Key: key, Value: []byte("v"), Concurrency: state.FirstWrite}}, Consistency: state.Strong})
		if err != nil {
			wrote <- outcome{"", err}
			return
		}
		wrote <- outcome{w.ETags[0], nil}
	}()
	select {
	case <-hangs:
	case w := <-wrote:
		must(t, w.err)
		c.mu.Lock()
		clear(c.hangs)
		c.mu.Unlock()
		return false
	}
	if len(h.Groups()) > 0 { // a sidecar's strong reads end by themselves
		go func() {
			got, err := s.Get(within(t, patience), state.GetRequest{Key: "app||before", ReadOptions: state.ReadOptions{Consistency: state.Strong}})
			read <- outcome{got.ETag, err}
		}()
		select {
		case <-hangs:
		case r := <-read: // of another leader already
			read <- r
		}
	} else {
		read <- outcome{}
	}
	c.isolate(old) // among the servers; what was sent waits there
	w, r := <-wrote, <-read
	must(t, w.err)
	must(t, r.err)
	c.late.Wait() // now it has arrived
	c.mu.Lock()
	clear(c.hangs)
	c.mu.Unlock()
	c.heal()
	eventually(t, func() error { return lead.Ready(0) })
	if got := get(t, s, key, state.Strong); got.ETag != w.etag {
		t.Errorf("the write was answered with the etag %q, and now there is %q", w.etag, got.ETag)
	}
	return true
}
