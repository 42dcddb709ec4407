package group

import (
	"fmt"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Cause says why a replica's state is not trusted. Values of a label of metrics.
type Cause string

// The causes.
const (
	// Differs: a majority of the voters agree on another state. This one is wrong: it is
	// replaced by a copy of another server's.
	Differs Cause = "differs"
	// Damaged: the stored records are not those that were applied. As with Differs.
	Damaged Cause = "damaged"
	// Split: voters differ, and no majority agrees. Nobody can tell who is right: the state
	// is kept, and not served, until a majority agrees with it, or an operator decides.
	Split Cause = "split"
)

// Doubt is why a replica serves nothing. It stands in the manifest beside the name of the
// database that it is about, so that a restart does not forget it and another database does
// not inherit it.
type Doubt struct {
	Cause Cause  `json:"cause"`
	Index uint64 `json:"index"`           // of the entry up to which states were compared
	Own   string `json:"own,omitempty"`   // digest of this server's state there
	Other string `json:"other,omitempty"` // digest of the majority, or one that differs
	Why   string `json:"why,omitempty"`   // of Damaged
}

// replaceable reports whether a copy from another server ends the doubt.
func (d *Doubt) replaceable() bool { return d != nil && d.Cause != Split }

// Describe says what is wrong, in a sentence.
func (d *Doubt) Describe() string {
	switch d.Cause {
	case Differs:
		return fmt.Sprintf("at entry %d its state has digest %s, that of a majority of the voters has %s; it copies the state of another server", d.Index, d.Own, d.Other)
	case Damaged:
		return fmt.Sprintf("at entry %d what it stores is not what it applied (%s); it copies the state of another server", d.Index, d.Why)
	default:
		return fmt.Sprintf("at entry %d its state has digest %s and another voter's %s, and no majority agrees on either; it waits for a majority, or for an operator", d.Index, d.Own, d.Other)
	}
}

func digestText(d kv.Digest) string { return fmt.Sprintf("%016x%016x", d[0], d[1]) }

// Doubt returns why the state of this server is not trusted; nil if it is.
func (g *Group) Doubt() *Doubt { return g.disk.fsm.doubt.Load() }

// Trusted is nil as long as the local machine may be read and may decide writes, or says why
// not. A read has to ask after it looked, and then whether the machine it looked at is still
// the one of the group: in this order, for a doubt ends after the machine was replaced.
func (g *Group) Trusted() error {
	d := g.Doubt()
	if d == nil {
		return nil
	}
	hint := "other servers answer meanwhile; it goes on by itself, see 'quorate status'"
	if d.Cause == Split {
		hint = "see 'a partition is split' in docs/troubleshooting.md: bring all voters up, or choose one and use 'quorate rescue'"
	}
	return &fault.Error{Code: fault.Unavailable, Op: "group.Trusted", Hint: hint,
		Msg: fmt.Sprintf("the replica of group %d on this server has taken itself out: %s", g.opts.ID, d.Describe())}
}

// distrust takes this replica out, if m is still its machine. What is served from memory
// stops at once; the manifest follows, so that a restart does not forget it.
func (g *Group) distrust(m *kv.Machine, d *Doubt) {
	f := g.disk.fsm
	f.swap.Lock()
	defer f.swap.Unlock()
	had := f.doubt.Load()
	if f.machine() != m || had.replaceable() || had != nil && had.Cause == d.Cause {
		return
	}
	f.doubt.Store(d)
	g.obs.doubts(d.Cause).Inc()
	g.opts.Logger.Error("the state of this replica is in doubt: it serves nothing, gives leadership up, and "+d.next(), "group", g.opts.ID, "cause", string(d.Cause),
		"index", d.Index, "own_hash", d.Own, "other_hash", d.Other, "why", d.Why)
	if err := g.disk.snaps.setDoubt(f.store.database(), d); err != nil {
		g.opts.Logger.Error("the doubt cannot be written down; after a restart this replica would serve until it is compared again", "group", g.opts.ID, "error", err)
	}
	g.changed.fire()
}

// next says what happens now.
func (d *Doubt) next() string {
	if d.replaceable() {
		return "copies the state of another server"
	}
	return "waits until a majority of the voters agree, or an operator chooses with 'quorate rescue'"
}

// trust ends a Split: a majority agrees with the state of m.
func (g *Group) trust(m *kv.Machine, index uint64) {
	f := g.disk.fsm
	f.swap.Lock()
	defer f.swap.Unlock()
	if d := f.doubt.Load(); d == nil || d.replaceable() || f.machine() != m {
		return
	}
	if err := g.disk.snaps.setDoubt(f.store.database(), nil); err != nil {
		g.opts.Logger.Error("the doubt cannot be taken back; the next comparison tries again", "group", g.opts.ID, "error", err)
		return
	}
	f.doubt.Store(nil)
	g.opts.Logger.Warn("a majority of the voters agree with the state of this replica: it serves again", "group", g.opts.ID, "index", index)
	g.changed.fire()
}

// setDoubt notes in the manifest that the database is in doubt, or no longer.
func (s *snapshots) setDoubt(of string, d *Doubt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Database != of {
		return nil // a received one has taken its place
	}
	return s.writeLocked(manifest{Database: of, Snapshot: s.current.Snapshot, Doubt: d})
}
