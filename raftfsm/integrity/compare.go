package integrity

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/snapshot"
)

// Replicas sends queries to the other servers of a group. If a query fails, for example because the other server does
// not support it, a Watch continues without that server's answer.
type Replicas interface {
	// Compare returns the digest of a server at the given index, and the state of the disk of that server.
	Compare(ctx context.Context, server raft.Server, index uint64) (Report, error)
	// AskState requests that server sends its state to this server (see Watch.AnswerState).
	AskState(ctx context.Context, server raft.Server, ask StateRequest) error
}

// Report is a server's answer to Compare.
type Report struct {
	Marked  bool // Digest is set; false if it is unknown, or if the server replaces its state
	Digest  kv.Digest
	Doubted bool          // the server does not trust its state and serves no requests
	Slow    bool          // the disk of the server is slow
	Append  time.Duration // median duration of the newest appends of the server; 0 = not known
}

// AnswerCompare returns this server's answer to a Compare query of another server. The answer has the digest of the
// state that this server had at the entry with the given index, if the digest is known.
func (w *Watch) AnswerCompare(index uint64) Report {
	var r Report
	// Read the machine first. If it were replaced after the doubt was read, the digest of the wrong machine
	// could be reported.
	m := w.FSM.Machine()
	d := w.FSM.Doubt()
	r.Doubted = d != nil
	if !d.Replaceable() && m == w.FSM.Machine() {
		for _, mark := range m.Marks() {
			if mark.Index == index {
				r.Marked, r.Digest = true, mark.Digest
			}
		}
	}
	r.Append, r.Slow = w.Disk.State()
	return r
}

// Answer is the result of a query to a server: its Report, or Err.
type Answer struct {
	Server raft.Server
	Report Report
	Err    error
}

// Voter reports whether the server votes.
func (a *Answer) Voter() bool { return a.Server.Suffrage == raft.Voter }

// Ask queries all other servers of the group concurrently about their state at the given index, and returns their
// answers. It waits at most Config.ReadRound. It returns nil if Config.Replicas is nil.
func (w *Watch) Ask(index uint64) []Answer {
	var others []Answer
	for _, s := range w.Raft.Servers() {
		if s.ID != w.Self {
			others = append(others, Answer{Server: s})
		}
	}
	if w.Replicas == nil {
		return nil
	}
	ctx, cancel := w.bounded(w.ReadRound)
	defer cancel()
	var wg sync.WaitGroup
	for i := range others {
		a := &others[i]
		wg.Go(func() { a.Report, a.Err = w.Replicas.Compare(ctx, a.Server, index) })
	}
	wg.Wait()
	return others
}

// bounded returns a context that ends after d, or when the group closes.
func (w *Watch) bounded(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.Closing, d)
}

// finding is the outcome of a comparison.
type finding uint8

const (
	undecided finding = iota
	agrees            // a majority of the voters has this server's state
	outvoted          // a majority of the voters has another state
	split             // voters differ, and no state is known to have a majority
)

// compared compares this server's digest, own, with the digests of the other servers. Only the digests of voters count.
// voter is true if this server is one of them.
//
// f is the outcome, and majority is the digest that more than half of the voters have. If there is no such digest,
// majority is any digest that differs from own, or the zero Digest if none differs.
func compared(own kv.Digest, voter bool, answers []Answer) (f finding, majority kv.Digest) {
	count, voters := map[kv.Digest]int{}, 0
	if voter {
		voters, count[own] = 1, 1
	}
	for _, a := range answers {
		if a.Server.Suffrage != raft.Voter {
			continue
		}
		voters++
		if a.Err == nil && a.Report.Marked {
			count[a.Report.Digest]++
		}
	}
	for d, n := range count {
		if n > voters/2 {
			if d == own {
				return agrees, d
			}
			return outvoted, d
		}
	}
	for d := range count {
		if d != own {
			f, majority = split, d
		}
	}
	return f, majority
}

// Tries is how many times a server queries the others for their digests at one mark (see kv.Mark). One query may not be
// enough, because a server has no digest until it has applied the entry of the mark. If the voters still differ at the
// last query and no digest has a majority, the server records the doubt snapshot.Split.
const Tries = 10

// markDue checks on the leader whether a new mark is due (see kv.Mark). If so, it proposes an entry that advances
// cluster time. All servers compute their digests at that entry.
func (w *Watch) markDue() {
	if w.Replicas == nil || !w.Raft.Leading() || len(w.Raft.Servers()) < 2 {
		return
	}
	m, now, period := w.FSM.Machine(), w.Raft.Time(), MarkPeriod(w.Every)
	// While voters are split, new marks are needed even if nothing is written.
	if !m.MarkDue(now) && (w.FSM.Doubt() == nil || m.Clock()/period == now/period) {
		return
	}
	ctx, cancel := w.bounded(w.ReadRound)
	defer cancel()
	err := w.Raft.Tick(ctx)
	if err != nil && !fault.Is(err, fault.NotLeader) && ctx.Err() == nil {
		w.Logger.Debug("states were not compared, because no log entry could be proposed; the next round tries again",
			"group", w.Group, "error", err)
	}
}

// MarkPeriod converts the interval between two marks to milliseconds of cluster time. The result is at least 1.
func MarkPeriod(d time.Duration) uint64 { return uint64(max(d.Milliseconds(), 1)) } //nolint:gosec // positive

// compare compares this server's digest with those of the other servers, at the oldest mark that was not compared yet
// (see kv.Mark). The outcome decides whether this server trusts its state. If too many digests are missing for a
// decision, the next call tries the same mark again, up to Tries times.
func (w *Watch) compare() {
	m := w.FSM.Machine()
	mark, ok := w.comparing.next(m)
	if !ok || w.Replicas == nil || w.FSM.Doubt().Replaceable() {
		return
	}
	voter := w.Raft.IsVoter()
	answers := w.Ask(mark.Index)
	if len(answers) == 0 {
		w.comparing.done(mark.Index)
		return
	}
	f, other := compared(mark.Digest, voter, answers)
	w.comparing.tries++
	last := w.comparing.tries >= Tries
	switch {
	case f == agrees:
		w.Events.Compared(true)
		w.trust(m, mark.Index)
	case f == outvoted:
		w.Distrust(m, &snapshot.Doubt{Cause: snapshot.Differs, Index: mark.Index, Own: mark.Digest.String(),
			Other: other.String()})
	case f == split && last:
		w.Distrust(m, &snapshot.Doubt{Cause: snapshot.Split, Index: mark.Index, Own: mark.Digest.String(),
			Other: other.String()})
	case last:
		w.Events.Compared(false)
	default:
		return // retry at the next tick, because other servers may be behind or briefly unreachable
	}
	w.comparing.done(mark.Index)
}

// comparing records which marks were compared, and how many times the comparison at the next kv.Mark was tried. Only
// the goroutine that calls Round uses it.
type comparing struct {
	machine *kv.Machine
	index   uint64 // marks up to this index were compared
	tries   int    // number of attempts to compare the next mark
}

// next returns the oldest mark that was not compared yet.
func (c *comparing) next(m *kv.Machine) (kv.Mark, bool) {
	if c.machine != m {
		*c = comparing{machine: m}
	}
	for _, mark := range m.Marks() {
		if mark.Index > c.index {
			return mark, true
		}
	}
	return kv.Mark{}, false
}

func (c *comparing) done(index uint64) { c.index, c.tries = index, 0 }

// standDown transfers leadership to another voter if this server does not trust its state. If the states of the
// voters are split, it does nothing, because no voter is known to have a better state.
func (w *Watch) standDown() {
	if !w.FSM.Doubt().Replaceable() || !w.Raft.IsLeader() {
		return
	}
	for _, a := range w.Ask(0) {
		if a.Err != nil || a.Server.Suffrage != raft.Voter || a.Report.Doubted {
			continue
		}
		err := w.Raft.HandOver(a.Server.ID)
		if err == nil {
			w.Logger.Warn("leadership was transferred, because the state of this replica is in doubt", "group", w.Group,
				"to", string(a.Server.ID))
			return
		}
		w.Logger.Warn("leadership transfer failed; it is tried again", "group", w.Group,
			"to", string(a.Server.ID), "error", err)
	}
}

// verifyRate is the maximum rate at which Verify reads, in bytes per second. It is low, so that the disk has time for
// other work.
const verifyRate = 32 << 20

// Verify checks that the stored records are those that were applied (see kv.Machine.Verify). If they are not, Verify
// logs the damage. It then also stops this replica from serving requests (see Distrust), unless no other server has a
// copy.
func (w *Watch) Verify() {
	m := w.FSM.Machine()
	v, err := m.Verify(func(bytes int) error {
		t := time.NewTimer(time.Duration(bytes) * time.Second / verifyRate)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-w.Closing.Done():
			return errClosing()
		}
	})
	switch {
	case fault.Is(err, fault.Unavailable):
		return // the machine was closed or replaced
	case err != nil:
		w.Events.Verified("failed")
		w.Logger.Error("the stored records cannot be verified", "group", w.Group, "error", err)
		return
	case v.Wrong == "":
		w.Events.Verified("ok")
		w.FSM.Damaged.Store(false)
		return
	}
	w.Events.Verified("wrong")
	w.FSM.Damaged.Store(true)
	if len(w.Ask(0)) == 0 {
		// There is no other copy. Refusing every request would repair nothing, and a restore needs a running
		// server.
		w.Logger.Error("stored records are damaged, and no other server has a copy: restore a backup; until then "+
			"damaged values may be served",
			"group", w.Group, "index", v.Applied, "why", v.Wrong)
		return
	}
	w.Distrust(m, &snapshot.Doubt{Cause: snapshot.Damaged, Index: v.Applied, Why: v.Wrong})
}

// Broken handles a failure of the database. If the database is damaged and another voter exists, Broken stops this
// server from serving the group and returns true. Round later replaces the database with a copy from another server.
//
// In all other cases Broken does nothing and returns false. For example, it returns false if the disk has failed but
// the data is not damaged.
func (w *Watch) Broken() bool {
	m := w.FSM.Machine()
	err := m.Broken()
	if !fault.Is(err, fault.Corrupt) || w.Replicas == nil || !slices.ContainsFunc(w.Raft.Servers(), w.otherVoter) {
		return false
	}
	w.FSM.Damaged.Store(true)
	w.Distrust(m, &snapshot.Doubt{Cause: snapshot.Damaged, Index: m.Applied(), Why: withoutHint(err)})
	return true
}

func (w *Watch) otherVoter(s raft.Server) bool { return s.ID != w.Self && s.Suffrage == raft.Voter }

// withoutHint returns the text of err without its hint. The hint is advice for a database that the server cannot repair
// itself, so it would be wrong for a database that Round replaces.
func withoutHint(err error) string {
	var e *fault.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	if e.Err == nil {
		return e.Msg
	}
	return e.Msg + ": " + e.Err.Error()
}

// Distrust stops this replica from serving requests. It stores the reason d in the manifest, so that the replica does
// not serve after a restart either. Distrust does nothing if m is no longer the machine of this replica.
func (w *Watch) Distrust(m *kv.Machine, d *snapshot.Doubt) {
	changed, err := w.FSM.Distrust(m, d, func() {
		w.Events.Doubted(d.Cause)
		w.Logger.Error("the state of this replica is in doubt: it serves no requests, does not lead, and "+d.Next(),
			"group", w.Group, "cause", string(d.Cause),
			"index", d.Index, "own_hash", d.Own, "other_hash", d.Other, "why", d.Why)
	})
	if err != nil {
		w.Logger.Error("the doubt cannot be stored; after a restart this replica would serve until the next comparison",
			"group", w.Group, "error", err)
	}
	if changed {
		w.Events.Changed()
	}
}

// trust makes this replica serve again after a doubt with the cause snapshot.Split. Call it when a majority of the
// voters has the same state as m at the given index. If there is no such doubt, trust does nothing.
func (w *Watch) trust(m *kv.Machine, index uint64) {
	changed, err := w.FSM.Trust(m)
	switch {
	case err != nil:
		w.Logger.Error("the end of the doubt cannot be stored; the next comparison tries again", "group", w.Group,
			"error", err)
	case changed:
		w.Logger.Warn("a majority of the voters agree with the state of this replica: it serves again",
			"group", w.Group, "index", index)
		w.Events.Changed()
	}
}
