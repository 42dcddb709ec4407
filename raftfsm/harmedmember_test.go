package raftfsm_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// One file of one of three servers is harmed. This server starts together with the server that missed the last
// acknowledged write, and without the third server. The harmed server must be refused, or the write must still exist:
// otherwise the two servers could elect a leader that lacks the write. The harmed server must never vote twice in a
// term.
func TestOpen_HarmedFileOfOneOfThreeLosesNothing(t *testing.T) {
	testutil.SkipUnderRace(t, testutil.ManyBytes)
	if testing.Short() {
		t.Skip("starts a cluster for each file and each kind of harm")
	}
	for _, engine := range []raftlog.Engine{raftlog.BoltDB, raftlog.WAL} {
		t.Run(string(engine), func(t *testing.T) {
			base := harmedBase(t, engine)
			slots := make(chan struct{}, 4) // clusters at the same time
			for _, name := range files(t, base.dir("victim")) {
				for harm, do := range harms {
					t.Run(name+"/"+harm, func(t *testing.T) {
						t.Parallel()
						slots <- struct{}{}
						defer func() { <-slots }()
						base.try(t, engine, func(victim string) error {
							return do(filepath.Join(victim, name), filepath.Join(base.dir("older"), name))
						})
					})
				}
			}
		})
	}
}

// harmedDirs is a directory with copies of the data directories of three servers. victim and partner have the
// acknowledged write "after"; behind was down. older is a copy of victim from before that write.
type harmedDirs string

func (d harmedDirs) dir(server string) string { return filepath.Join(string(d), server) }

func harmedBase(t *testing.T, engine raftlog.Engine) harmedDirs {
	t.Helper()
	base, live := harmedDirs(t.TempDir()), map[string]raftfsm.Options{}
	c := startCluster(t, 3, func(o *raftfsm.Options) {
		o.Engine, o.Timing.WitnessEvery, o.Timing.FloorEvery = engine, 20*time.Millisecond, 10*time.Millisecond
		live[o.NodeID] = *o
	})
	all := c.running()
	victim, partner, behind := all[0], all[1], all[2]
	set(t, c.leader().Store("", "s"), "before", "before", state.Strong)
	caughtUp(t, victim, c.leader())
	must(t, victim.Groups()[0].Snapshot())
	c.stop(victim)
	o := live[victim.Identity().Node]
	o.Bootstrap = false
	must(t, copyDir(base.dir("older"), o.Dir))
	victim, _, err := c.startAnew(t, o)
	must(t, err)
	caughtUp(t, victim, c.leader())
	c.stop(behind)
	eventually(t, func() error { // so that the victim has a vote to forget
		lead := c.leader()
		if lead == victim {
			return nil
		}
		return lead.Groups()[0].Transfer(within(t, 5*time.Second), raft.ServerID(victim.Identity().Server))
	})
	set(t, c.leader().Store("", "s"), "after", "after", state.Strong)
	caughtUp(t, victim, c.leader())
	caughtUp(t, partner, c.leader())
	// The floor may be behind by FloorEvery. What was written since then is not protected (ADR 26).
	eventually(t, func() error {
		f, err := raftlog.LoadFloor(raftlog.OSVolume{}, filepath.Join(o.Dir, "groups/0"))
		if last := victim.Groups()[0].Status().AppliedIndex; err == nil && (f == nil || f.Last < last) {
			err = fmt.Errorf("the floor is below entry %d: %+v", last, f)
		}
		return err
	})
	// The copies are taken while the servers run, as after kill -9. Only the log has the last write.
	for name, h := range map[string]*raftfsm.Host{"victim": victim, "behind": behind, "partner": partner} {
		must(t, copyDir(base.dir(name), live[h.Identity().Node].Dir))
	}
	return base
}

// try harms a copy of the victim's directory and starts the servers on copies.
func (d harmedDirs) try(t *testing.T, engine raftlog.Engine, harm func(victim string) error) {
	t.Helper()
	copies := harmedDirs(t.TempDir())
	for _, name := range []string{"victim", "behind", "partner"} {
		must(t, copyDir(copies.dir(name), d.dir(name)))
	}
	before := voteIn(t, copies.dir("victim"))
	if err := harm(copies.dir("victim")); errors.Is(err, fs.ErrNotExist) {
		t.Skip("there was no such file earlier")
	} else {
		must(t, err)
	}
	c := newCluster(t)
	start := func(i int, name string) (*raftfsm.Host, *atomic.Pointer[error], error) {
		return c.startAnew(t, c.options(i, func(o *raftfsm.Options) {
			o.Engine, o.Timing.WitnessEvery = engine, 20*time.Millisecond
			o.Dir, o.Bootstrap = copies.dir(name), false
			o.NodeID = "" // from the directory
		}))
	}
	victim, fatal, err := start(1, "victim")
	if err != nil {
		refusedWell(t, err)
		return
	}
	_, _, err = start(2, "behind")
	must(t, err)
	ended := errors.New("it ended")
	read := func() error {
		if fatal.Load() != nil {
			return ended
		}
		for _, h := range c.running() {
			if !h.Groups()[0].Leading() {
				continue
			}
			got, err := h.Store("", "s").Get(within(t, time.Second), state.GetRequest{Key: "after",
				ReadOptions: state.ReadOptions{Consistency: state.Strong}})
			if err != nil {
				return err
			}
			if string(got.Value) != "after" {
				t.Errorf("after = %q: an acknowledged write is lost", got.Value)
			}
			return nil
		}
		return errors.New("no leader")
	}
	alone := time.Now()
	eventually(t, func() error {
		err := read()
		// The harmed server takes no part in the group, so nothing can be lost.
		if errors.Is(err, ended) || time.Since(alone) > 8*time.Second {
			return nil
		}
		return err
	})
	_, _, err = start(3, "partner")
	must(t, err)
	eventually(t, func() error {
		if e := fatal.Load(); e != nil { // in the product its process would end; the others continue
			if !fault.Is(*e, fault.Corrupt) {
				t.Errorf("it ends with %v", *e)
			}
			fatal = new(atomic.Pointer[error])
			c.stop(victim)
		}
		return read()
	})
	for _, h := range c.running() {
		c.stop(h)
	}
	if now := voteIn(t, copies.dir("victim")); now.term < before.term ||
		now.voted == before.voted && now.candidate != before.candidate || now.voted < before.voted {
		t.Errorf("votes: before the harm %+v, now %+v", before, now)
	}
}

// vote is the current term of a server, and its last vote.
type vote struct {
	term, voted uint64
	candidate   string
}

func voteIn(t *testing.T, dir string) vote {
	t.Helper()
	s, err := raftlog.OSVolume{}.Stable(filepath.Join(dir, "groups/0", raftlog.StableName))
	must(t, err)
	defer func() { must(t, s.Close()) }()
	term, err := s.GetUint64([]byte(raftlog.KeyCurrentTerm))
	must(t, err)
	v, err := s.Get(raftlog.KeyVote)
	must(t, err)
	if len(v) < 8 {
		t.Fatalf("a vote of %d bytes", len(v))
	}
	return vote{term, binary.BigEndian.Uint64(v), string(v[8:])}
}
