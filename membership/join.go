package membership

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// outcome is how an attempt to join ended; it is a metric label.
type outcome string

const (
	joined      outcome = "joined"
	refused     outcome = "refused"     // refused by the rules of admission
	unanswered  outcome = "unanswered"  // the seed closed the connection without an answer
	failedJoin  outcome = "failed"      // answered, but not understood
	untrusted   outcome = "untrusted"   // one of the two does not trust the other's certificate
	unreachable outcome = "unreachable" // no connection
	toItself    outcome = "itself"      // the seed is this node
)

func outcomes() []outcome {
	return []outcome{joined, refused, unanswered, failedJoin, untrusted, unreachable, toItself}
}

// join tries to join the node at addr. It returns an error unless the outcome is joined.
func (g *Gossip) join(addr netip.AddrPort) (outcome, error) {
	g.contacts.forget()
	r, err := g.refused.tryJoin(addr, func() error {
		_, err := g.list.Load().Join([]string{addr.String()})
		return err
	})
	o, err := g.judge(addr, r, err)
	g.metrics.joins.WithLabelValues(string(o)).Inc()
	return o, err
}

func (g *Gossip) judge(addr netip.AddrPort, r *refusal, err error) (outcome, error) {
	c := g.contacts.lastContact()
	switch {
	case err == nil:
		return joined, nil
	case c != nil && c.distrust() != nil:
		return untrusted, errDistrust(addr, c.distrust())
	case c == nil || c.err != nil:
		var dial error
		if c != nil {
			dial = c.err
		}
		return unreachable, &fault.Error{Code: fault.Unavailable, Op: "membership.Join", Msg: "no connection to " +
			addr.String(), Err: dial}
	case !c.answered.Load():
		return unanswered, &fault.Error{Code: fault.Unavailable, Op: "membership.Join", Msg: addr.String() +
			" closed the connection without an answer",
			Hint: "is it a node, with the same --cluster name and the same cluster token?"}
	case r != nil && r.reason == itself:
		return toItself, r.err
	case r != nil:
		return refused, r.err
	default: // memberlist returns only a text
		return failedJoin, &fault.Error{Code: fault.Unavailable, Op: "membership.Join",
			Msg: fmt.Sprintf("%s answered, but not as expected: %s", addr,
				strings.Join(strings.Fields(err.Error()), " ")),
			Hint: "do both have the same cluster token, and versions that are at most one apart?"}
	}
}

// errDistrust explains a failed handshake with a seed.
func errDistrust(addr netip.AddrPort, err error) error {
	e := &fault.Error{Code: fault.Denied, Op: "membership.Join",
		Msg: fmt.Sprintf("the node at %s is not trusted", addr), Err: err}
	switch reason := reasonOf(err); {
	case isAlert(err):
		e.Msg, e.Hint = fmt.Sprintf("the node at %s does not accept this node's certificate", addr),
			"its log says why; most often the cluster tokens differ"
	case closedEarly(err):
		e.Code, e.Msg = fault.Unavailable, fmt.Sprintf("the gossip port at %s closed the connection during "+
			"the handshake", addr)
		e.Hint = "either too many unfinished connections hold that port: its log says so, and " +
			"quorate_gossip_refused_total there counts reason busy; " +
			"or what answers is not a secured node: give both the same --cluster-token-file"
	case reason == Plain || reason == Handshake:
		e.Code, e.Msg, e.Hint = fault.Unavailable,
			fmt.Sprintf("this node is secured, and what answers at %s is not", addr),
			"is it a node, with the same --cluster-token-file?"
	}
	return e
}

// closedEarly reports whether the other side closed a connection without an answer.
func closedEarly(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}

// joiner connects this node to the cluster. While this node is isolated, joiner tries all seeds and failed members.
// Once this node is no longer isolated, joiner tries failed members and missing seeds one at a time, so that a
// partitioned cluster becomes one again. It is not safe for concurrent use.
type joiner struct {
	gossip *Gossip
	turn   int                          // number of addresses tried by tryOne, which selects the next one
	selves map[netip.AddrPort]time.Time // seeds that turned out to be this node, with the time of the last attempt
	wait   time.Duration

	unmet    time.Time  // time of the first round without success; zero after a success
	reported time.Time  // time of the last log record of report
	level    slog.Level // level of that log record
}

func (j *joiner) run(ctx context.Context) {
	t := j.gossip.opts.Timing
	for first := true; ctx.Err() == nil; first = false {
		was := j.gossip.isolated()
		if was {
			j.tryAll(ctx)
		} else {
			j.tryOne(ctx)
		}
		if first {
			close(j.gossip.tried)
		}
		is := j.gossip.isolated()
		if was != is || j.wait == 0 {
			j.wait = t.JoinRetry
		} else {
			j.wait = min(2*j.wait, t.Rejoin)
		}
		j.pause(ctx, is)
	}
}

// isolated reports whether this node must look for other nodes: no other member is alive, or this node has never
// exchanged its full state with another node.
func (g *Gossip) isolated() bool {
	met, _, _ := g.result.get()
	return !met || g.Roster().alone()
}

// pause waits for the duration j.wait. It returns early when Gossip.isolated no longer returns the given value.
func (j *joiner) pause(ctx context.Context, isolated bool) {
	timer := time.NewTimer(j.wait)
	defer timer.Stop()
	for {
		r := j.gossip.Roster()
		_, met, _ := j.gossip.result.get()
		if j.gossip.isolated() != isolated {
			return
		}
		select {
		case <-r.Changed():
		case <-met:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// missing returns the addresses to try: those of the seeds and of failed members. If some host names of seeds cannot be
// resolved, it returns the other addresses and an error. It omits these addresses:
//
//   - The address of this node.
//   - The addresses of live members, unless this node is isolated.
//   - Seed addresses that led back to this node, for example through a load balancer. An isolated node omits such an
//     address only for the duration Timing.Rejoin, because the load balancer may later lead to another node.
func (j *joiner) missing(ctx context.Context) ([]netip.AddrPort, error) {
	isolated := j.gossip.isolated()
	seeds, err := j.gossip.seeds(ctx)
	r := j.gossip.Roster()
	for _, m := range r.members {
		if m.State == Failed {
			seeds = append(seeds, m.Gossip)
		}
	}
	slices.SortFunc(seeds, netip.AddrPort.Compare)
	seeds = slices.DeleteFunc(slices.Compact(seeds), func(a netip.AddrPort) bool {
		present := slices.ContainsFunc(r.members, func(m Member) bool { return m.State == Alive && m.Gossip == a })
		led, self := j.selves[a]
		self = self && (!isolated || time.Since(led) < j.gossip.opts.Timing.Rejoin)
		return self || a == r.Self().Gossip || present && !isolated
	})
	return seeds, err
}

// tryAll tries every missing address. It is used while this node is isolated.
func (j *joiner) tryAll(ctx context.Context) {
	targets, err := j.missing(ctx)
	errs := []error{err}
	var refusal error
	reached := false
	for _, addr := range targets {
		if ctx.Err() != nil {
			return
		}
		o, err := j.try(addr)
		switch o {
		case joined:
			reached = true
		case refused, untrusted:
			refusal = err
		}
		if o != toItself {
			errs = append(errs, err)
		}
	}
	if reached {
		j.gossip.opts.Logger.Info("joined the cluster", "members", len(j.gossip.Roster().Alive()))
		refusal, errs = nil, nil
		j.unmet, j.reported = time.Time{}, time.Time{}
	} else {
		j.report(errors.Join(errs...), refusal != nil)
	}
	j.gossip.result.set(reached, refusal)
	j.gossip.result.note(errors.Join(errs...))
}

// joinGrace is how long failed attempts to reach a seed are considered normal, because the nodes of a new cluster start
// one after another.
const joinGrace = 30 * time.Second

// report logs why no seed could be joined. The level is INFO at first, and WARN if a seed refused this node or
// joinGrace has passed. report logs at most once in logInterval, unless the level rises.
func (j *joiner) report(err error, refused bool) {
	if err == nil {
		return
	}
	now := time.Now()
	if j.unmet.IsZero() {
		j.unmet = now
	}
	level := slog.LevelInfo
	if refused || now.Sub(j.unmet) >= joinGrace {
		level = slog.LevelWarn
	}
	if level <= j.level && now.Sub(j.reported) < logInterval {
		return
	}
	j.reported, j.level = now, level
	lines := strings.Split(fault.Text(err), "\n")
	j.gossip.opts.Logger.Log(context.Background(), level, "no seed can be joined; it is tried again",
		"error", strings.Join(lines, "; "))
}

// tryOne tries one missing address per call, in turn.
func (j *joiner) tryOne(ctx context.Context) {
	targets, _ := j.missing(ctx) // a name that cannot be resolved now is tried again
	if len(targets) == 0 {
		return
	}
	addr := targets[j.turn%len(targets)]
	j.turn++
	if o, err := j.try(addr); o != joined {
		j.gossip.opts.Logger.Log(ctx, slog.LevelDebug, "a missing member is still missing", "address", addr.String(),
			"error", err)
	}
}

func (j *joiner) try(addr netip.AddrPort) (outcome, error) {
	o, err := j.gossip.join(addr)
	if o != toItself {
		return o, err
	}
	// A leaving node knows only this node as alive, and so looks like this node itself. If another member is known at
	// this address, the address is tried again later.
	if m, other := j.otherAt(addr); other {
		return unanswered, &fault.Error{Code: fault.Unavailable, Op: "membership.Join",
			Msg: fmt.Sprintf("%s at %s is leaving", m.NodeID, addr)}
	}
	j.selves[addr] = time.Now()
	return o, err
}

// otherAt returns the member with the gossip address addr, whatever its state. It ignores this node.
func (j *joiner) otherAt(addr netip.AddrPort) (Member, bool) {
	r := j.gossip.Roster()
	i := slices.IndexFunc(r.members, func(m Member) bool { return m.Gossip == addr && m.NodeID != r.self })
	if i < 0 {
		return Member{}, false
	}
	return r.members[i], true
}

// result is the result of joining so far.
type result struct {
	mu      sync.Mutex
	joined  bool  // the full state was exchanged with another node at least once
	refusal error // refusal in the last round
	trouble error // why the last round reached no node; nil if it reached one
	changed chan struct{}
}

func (r *result) set(joined bool, refusal error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.joined, r.refusal = r.joined || joined, refusal
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *result) get() (joined bool, changed <-chan struct{}, refusal error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.joined, r.changed, r.refusal
}

// note stores why the last round reached no node.
func (r *result) note(trouble error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trouble = trouble
}

// Trouble returns the errors of the last attempt to reach other nodes. It returns nil if this node is connected to
// another node, if there are no seeds, or if the first attempt has not ended yet.
func (g *Gossip) Trouble() error {
	if !g.isolated() {
		return nil
	}
	g.result.mu.Lock()
	defer g.result.mu.Unlock()
	return g.result.trouble
}
