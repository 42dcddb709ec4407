package raftfsm_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// flipServers are the servers of flipCluster. The files of the first are changed.
var flipServers = []string{"victim", "second", "third"}

// flipCluster makes the data directories of three servers that have stopped, with tables and logs.
func flipCluster(t *testing.T, e raftlog.Engine) harmedDirs {
	t.Helper()
	base, live := harmedDirs(t.TempDir()), map[string]string{}
	c := startCluster(t, 3, func(o *raftfsm.Options) {
		o.Engine, o.Timing.FloorEvery = e, 10*time.Millisecond
		live[o.NodeID] = o.Dir
	})
	all := c.running()
	for round := range 2 {
		for n := round; n < flipKeyCount; n += 2 {
			key, value := flipKeys(n)
			set(t, c.leader().Store("", "s"), key, value, state.Strong)
		}
		for _, h := range all {
			caughtUp(t, h, c.leader())
			if round == 0 {
				must(t, h.Groups()[0].Snapshot())
			}
		}
	}
	for i, h := range all {
		node := h.Identity().Node
		c.stop(h)
		must(t, copyDir(base.dir(flipServers[i]), live[node]))
	}
	return base
}

// memberFlips returns changes of a file of the victim. A table gets more changes, because the start does not read most
// of it.
func memberFlips(t *testing.T, rnd *rand.Rand, path string) []flipped {
	t.Helper()
	out := randomFlips(t, rnd, path, 1)
	if strings.HasSuffix(path, ".sst") {
		info, err := os.Stat(path)
		must(t, err)
		for tenth := int64(2); tenth <= 8; tenth += 2 {
			out = append(out, flipped{bit: info.Size()*8*tenth/10 + rnd.Int64N(8), cut: -1})
		}
	}
	return out
}

// Single bits of the files of one of three servers are flipped, and files are cut off. No server may ever serve a
// wrong value. The damaged server must refuse to start with an error that names the file, or end with such an error,
// or serve right values. If a table of its database is damaged, it must get right values from the other servers
// without a restart.
func TestDamage_OneOfThreeServesNoWrongValue(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster for each change of a file")
	}
	forEngines(t, func(t *testing.T, e raftlog.Engine) {
		rnd, base := crashRandom(t), flipCluster(t, e)
		slots := make(chan struct{}, 4) // clusters at the same time
		var mu sync.Mutex
		outcomes := map[string]int{}
		t.Run("all", func(t *testing.T) {
			for _, name := range files(t, base.dir("victim")) {
				for _, f := range memberFlips(t, rnd, filepath.Join(base.dir("victim"), name)) {
					t.Run(name+" "+f.String(), func(t *testing.T) {
						t.Parallel()
						slots <- struct{}{}
						defer func() { <-slots }()
						outcome := base.flip(t, e, name, f)
						mu.Lock()
						defer mu.Unlock()
						outcomes[filepath.Ext(name)+" "+outcome]++
					})
				}
			}
		})
		t.Log(outcomes)
		if outcomes[".sst healed"] == 0 {
			t.Errorf("no damaged table was replaced by a copy: %v", slices.Collect(maps.Keys(outcomes)))
		}
	})
}

// flip starts the servers on copies of their directories after a change of one file of the victim, writes, and reads
// every key at every server. It returns what the victim did.
func (d harmedDirs) flip(t *testing.T, e raftlog.Engine, name string, f flipped) string {
	t.Helper()
	copies, c := harmedDirs(t.TempDir()), newCluster(t)
	for _, server := range flipServers {
		must(t, copyDir(copies.dir(server), d.dir(server)))
	}
	must(t, f.do(filepath.Join(copies.dir("victim"), name)))
	start := func(i int) (*raftfsm.Host, *atomic.Pointer[error], error) {
		return c.startAnew(t, c.options(i+1, func(o *raftfsm.Options) {
			o.Engine, o.Dir, o.Bootstrap = e, copies.dir(flipServers[i]), false
			o.NodeID = ""                                                            // from the directory
			o.Timing.Compare, o.Timing.FirstVerify = 200*time.Millisecond, time.Hour // only reads find damaged blocks
		}))
	}
	about := func(err error) {
		t.Helper()
		if !fault.Is(err, fault.Corrupt) || !namesFile(err, name) {
			t.Errorf("the error is not about this file: %v", err)
		}
		refusedWell(t, err)
	}
	victim, fatal, err := start(0)
	if err != nil {
		about(err)
	}
	for i := 1; i < len(flipServers); i++ {
		h, _, err := start(i)
		must(t, err)
		defer c.stop(h)
	}
	// The victim may find the damage while it applies an entry. It must not miss that entry.
	for n := 0; n < flipKeyCount; n += 5 {
		key, value := flipKeys(n)
		eventually(t, func() error {
			_, err := c.others(victim)[0].Store("", "s").Set(within(t, 20*time.Second), state.SetRequest{
				Items:       []state.Write{{Key: key, Value: []byte(value)}, {Key: key + "x", Value: []byte(value)}},
				Consistency: state.Strong})
			return err
		})
	}
	for _, h := range c.running() {
		if h != victim && !flipRead(t, h, func() bool { return false }) {
			t.Errorf("%s does not serve", h.Identity().Node)
		}
	}
	switch {
	case victim == nil:
		return "refused"
	case !flipRead(t, victim, func() bool { return fatal.Load() != nil }) || !flipHealed(t, victim, fatal):
		about(*fatal.Load())
		_ = victim.Close() // a damaged server may return an error
		return "ended"
	}
	defer func() { _ = victim.Close() }()
	for _, name := range databases(t, copies.dir("victim")) {
		if !slices.Contains(databases(t, d.dir("victim")), name) {
			return "healed"
		}
	}
	return "right values"
}

// databases returns the names of the databases in the data directory of a server.
func databases(t *testing.T, dir string) (names []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "groups/0/db-*"))
	must(t, err)
	for _, p := range paths {
		names = append(names, filepath.Base(p))
	}
	return names
}

// flipHealed waits until the replica of h is trusted. Other servers answer its reads until then. It returns false if h
// has ended.
func flipHealed(t *testing.T, h *raftfsm.Host, fatal *atomic.Pointer[error]) bool {
	t.Helper()
	eventually(t, func() error {
		if fatal.Load() != nil {
			return nil
		}
		return h.Ready(0)
	})
	return fatal.Load() == nil
}

// flipRead reads every key at h until it gets the value. It returns false if ended returns true before that. It fails
// the test if a value is wrong or missing, or if a read returns fault.Corrupt while the server has not ended.
func flipRead(t *testing.T, h *raftfsm.Host, ended func() bool) bool {
	t.Helper()
	for i := range flipKeyCount + flipKeyCount/5 {
		for _, level := range []state.Consistency{state.Eventual, state.Strong} {
			key, value := flipKeys(i)
			if n := 5 * (i - flipKeyCount); n >= 0 {
				key, value = flipKeys(n)
				key += "x"
			}
			done := false
			eventually(t, func() error {
				if ended() {
					return nil
				}
				got, err := h.Store("", "s").Get(within(t, 20*time.Second), state.GetRequest{Key: key,
					ReadOptions: state.ReadOptions{Consistency: level}})
				switch {
				case fault.Is(err, fault.Corrupt) && !ended():
					t.Errorf("a read of %s at %s gave %v", key, h.Identity().Node, err)
				case err == nil && got.Found() && string(got.Value) != value:
					t.Errorf("%s at %s is %.40q", key, h.Identity().Node, got.Value)
				case err == nil && !got.Found() && got.Proof.Level != state.Stale:
					err = fmt.Errorf("%s is missing at %s", key, h.Identity().Node)
					t.Error(err)
				case err == nil && !got.Found():
					return fmt.Errorf("%s is stale", h.Identity().Node)
				case err == nil:
					done = true
				}
				return err
			})
			if !done {
				return false
			}
		}
	}
	return true
}
