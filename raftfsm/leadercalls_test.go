package raftfsm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/raftfsm"
)

// Calls to a hanging leader end as soon as another leader is known, before their own deadline. A write that
// reaches the old leader late is not applied again.
func TestLeaderCalls_LeaderHangs(t *testing.T) {
	t.Parallel()
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
		t.Log("the leader changed before the call; trying again")
	}
}

// waitsOut lets h write key and read while lead hangs. It returns false if another server became leader before
// that.
func waitsOut(t *testing.T, c *cluster, h, lead *raftfsm.Host, key string) bool {
	const patience = 2 * time.Minute // calls that wait longer fail
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
		w, err := s.Set(within(t, patience), state.SetRequest{Items: []state.Write{{Key: key, Value: []byte("v"),
			Concurrency: state.FirstWrite}}, Consistency: state.Strong})
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
	if len(h.Groups()) > 0 { // strong reads of a sidecar have their own time limit
		go func() {
			got, err := s.Get(within(t, patience), state.GetRequest{Key: "app||before",
				ReadOptions: state.ReadOptions{Consistency: state.Strong}})
			read <- outcome{got.ETag, err}
		}()
		select {
		case <-hangs:
		case r := <-read: // answered by another leader already
			read <- r
		}
	} else {
		read <- outcome{}
	}
	c.isolate(old) // cuts the links to other servers; what was sent stays in flight
	w, r := <-wrote, <-read
	must(t, w.err)
	must(t, r.err)
	c.late.Wait() // now the late write has arrived
	c.mu.Lock()
	clear(c.hangs)
	c.mu.Unlock()
	c.heal()
	eventually(t, func() error { return lead.Ready(0) })
	if got := get(t, s, key, state.Strong); got.ETag != w.etag {
		t.Errorf("the write returned ETag %q, and now the ETag is %q", w.etag, got.ETag)
	}
	return true
}
