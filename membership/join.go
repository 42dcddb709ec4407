package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// outcome is how an attempt to join ended: a value of the metric label of that name.
type outcome string

const (
	joined      outcome = "joined"
	refused     outcome = "refused"     // by the rules, on this side and so on the other
	unanswered  outcome = "unanswered"  // connected, and closed without a word
	failedJoin  outcome = "failed"      // answered, but not understood
	untrusted   outcome = "untrusted"   // one of the two does not trust the other's certificate
	unreachable outcome = "unreachable" // no connection
	toItself    outcome = "itself"      // the seed is this node
)

func outcomes() []outcome {
	return []outcome{joined, refused, unanswered, failedJoin, untrusted, unreachable, toItself}
}

// join tries one address. Its error, of whatever outcome but joined, says what to mend.
func (g *Gossip) join(addr netip.AddrPort) (outcome, error) {
	g.contacts.forget()
	r, err := g.refused.during(addr, func() error {
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
		return unreachable, &fault.Error{Code: fault.Unavailable, Op: "membership.Join", Msg: "no connection to " + addr.String(), Err: dial}
	case !c.answered.Load():
		return unanswered, &fault.Error{Code: fault.Unavailable, Op: "membership.Join", Msg: addr.String() + " closed the connection without an answer",
			Hint: "is it a node, with the same --cluster name and the same cluster token?"}
	case r != nil && r.reason == itself:
		return toItself, r.err
	case r != nil:
		return refused, r.err
	default: // the text is all there is
		return failedJoin, &fault.Error{Code: fault.Unavailable, Op: "membership.Join",
			Msg:  fmt.Sprintf("%s answered, but not as expected: %s", addr, strings.Join(strings.Fields(err.Error()), " ")),
			Hint: "do both have the same cluster token, and versions that are at most one apart?"}
	}
}

// errDistrust says what a failed handshake with a seed means.
func errDistrust(addr netip.AddrPort, err error) error {
	e := &fault.Error{Code: fault.Denied, Op: "membership.Join", Msg: fmt.Sprintf("the node at %s is not trusted", addr), Err: err}
	switch reason := reasonOf(err); {
	case isAlert(err):
		e.Msg, e.Hint = fmt.Sprintf("the node at %s does not accept this node's certificate", addr), "its log says why; most often the cluster tokens differ"
	case reason == Plain || reason == Handshake:
		e.Code, e.Msg, e.Hint = fault.Unavailable, fmt.Sprintf("this node is secured, and what answers at %s is not", addr), "is it a node, with the same --cluster-token-file?"
	}
	return e
}

// joiner keeps this node together with the others: it tries the seeds until it has met one, and then now and again one that is missing, so that halves of a network that was
// cut find each other. It is used by one goroutine.
type joiner struct {
	gossip *Gossip
	turn   int                     // of the missing, when one is tried at a time
	selves map[netip.AddrPort]bool // seeds that turned out to be this node
	warned time.Time
	wait   time.Duration
}

func (j *joiner) run(ctx context.Context) {
	t := j.gossip.opts.Timing
	for first := true; ctx.Err() == nil; first = false {
		was := j.gossip.astray()
		if was {
			j.tryAll(ctx)
		} else {
			j.tryOne(ctx)
		}
		if first {
			close(j.gossip.tried)
		}
		is := j.gossip.astray()
		if was != is || j.wait == 0 {
			j.wait = t.JoinRetry
		} else {
			j.wait = min(2*j.wait, t.Rejoin)
		}
		j.pause(ctx, is)
	}
}

// astray reports whether this node has to look for others: no other is alive, or none has
// exchanged everything with it yet. A node that was refused may know of others all the same,
// because news rides on every packet.
func (g *Gossip) astray() bool {
	met, _, _ := g.result.get()
	return !met || g.Roster().alone()
}

// pause waits for the next attempt; going astray, or not any more, ends it.
func (j *joiner) pause(ctx context.Context, astray bool) {
	timer := time.NewTimer(j.wait)
	defer timer.Stop()
	for {
		r := j.gossip.Roster()
		_, met, _ := j.gossip.result.get()
		if j.gossip.astray() != astray {
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

// missing are the seeds and the members that failed; without those that a member alive
// gossips at, unless this node is astray.
func (j *joiner) missing(ctx context.Context) ([]netip.AddrPort, error) {
	astray := j.gossip.astray()
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
		return present && !astray || j.selves[a]
	})
	return seeds, err
}

// tryAll tries every missing address: this node is astray.
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
		refusal = nil
	} else {
		j.warn(errors.Join(errs...))
	}
	j.gossip.result.set(reached, refusal)
}

// warn says at most once a minute why nobody could be joined.
func (j *joiner) warn(err error) {
	if err == nil || time.Since(j.warned) < sayAgain {
		return
	}
	j.warned = time.Now()
	lines := strings.Split(fault.Text(err), "\n")
	j.gossip.opts.Logger.Warn("no seed can be joined; trying on", "error", strings.Join(lines, "; "))
}

// tryOne tries one missing address after the other, one at each call.
func (j *joiner) tryOne(ctx context.Context) {
	targets, _ := j.missing(ctx) // a name without an address now may have one next time
	if len(targets) == 0 {
		return
	}
	addr := targets[j.turn%len(targets)]
	j.turn++
	if o, err := j.try(addr); o != joined {
		j.gossip.opts.Logger.Log(ctx, slog.LevelDebug, "a missing member is still missing", "address", addr.String(), "error", err)
	}
}

func (j *joiner) try(addr netip.AddrPort) (outcome, error) {
	o, err := j.gossip.join(addr)
	if o == toItself {
		j.selves[addr] = true
	}
	return o, err
}

// result is what became of joining so far.
type result struct {
	mu      sync.Mutex
	joined  bool  // once, ever: everything was exchanged with another node
	refusal error // of the last round
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
