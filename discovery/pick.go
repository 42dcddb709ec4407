package discovery

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Outcome is how a call to an instance ended.
type Outcome uint8

// The outcomes.
const (
	OK          Outcome = iota // the application answered, with any status
	Failed                     // the call reached the application and failed; the instance is not demoted
	Unreachable                // the call certainly never reached the application; the instance is demoted at once
)

// An instance that a call could not reach is demoted: it gets no calls for some time. The first failure demotes it
// for firstDemotion. Each further failure doubles this time, up to lastDemotion.
const (
	firstDemotion = time.Second
	lastDemotion  = 30 * time.Second
)

type standingKey struct {
	app         App
	incarnation Incarnation
}

// standing is the record of this node's calls to an instance.
type standing struct {
	calls   atomic.Int64 // outstanding
	trials  atomic.Int64 // outstanding calls that began while strikes was above 0
	strikes atomic.Int32 // consecutive calls that did not reach the instance
	until   atomic.Int64 // end of the demotion; time since Catalogue.begun
}

// demoted reports whether the instance must not get a call now. The parameter now is the time since Catalogue.begun.
// After a demotion, the instance gets only one call at a time until a call succeeds.
func (s *standing) demoted(now time.Duration) bool {
	return s.strikes.Load() > 0 && (now < time.Duration(s.until.Load()) || s.trials.Load() > 0)
}

func (s *standing) demote(now time.Duration) {
	n := s.strikes.Add(1)
	s.until.Store(int64(now + min(firstDemotion<<min(n-1, 5), lastDemotion)))
}

func (s *standing) clear() {
	if s.strikes.Load() > 0 {
		s.strikes.Store(0)
	}
}

func (c *Catalogue) standing(k standingKey) *standing {
	if s, ok := c.standings.Load(k); ok {
		return s.(*standing)
	}
	s, _ := c.standings.LoadOrStore(k, &standing{})
	return s.(*standing)
}

// readmit calls the function which with the key of each instance. If the function returns true, readmit ends the
// demotion of this instance.
func (c *Catalogue) readmit(which func(standingKey) bool) {
	c.standings.Range(func(k, s any) bool {
		if which(k.(standingKey)) {
			s.(*standing).clear()
		}
		return true
	})
}

// prune deletes the standings of instances whose incarnation is no longer in the View. It keeps a standing as long as
// the instance has outstanding calls.
func (c *Catalogue) prune() {
	alive := map[Incarnation]bool{}
	for _, r := range c.view.Load().records {
		alive[r.Incarnation] = true
	}
	c.standings.Range(func(k, s any) bool {
		if !alive[k.(standingKey).incarnation] && s.(*standing).calls.Load() == 0 {
			c.standings.Delete(k)
		}
		return true
	})
}

// Lease is an instance chosen for one call. The caller must end the lease with Done.
type Lease struct {
	Instance Instance
	done     func(Outcome)
	over     atomic.Bool
}

// NewLease returns a Lease of an instance. The first call of Done calls release with the outcome of the call.
func NewLease(i Instance, release func(Outcome)) *Lease { return &Lease{Instance: i, done: release} }

// Done records the outcome of the call. Further calls of Done do nothing.
func (l *Lease) Done(o Outcome) {
	if !l.over.Swap(true) {
		l.done(o)
	}
}

// lease returns a Lease for a call to an instance. The call counts as outstanding until Done is called.
func (c *Catalogue) lease(one *candidate) *Lease {
	s := one.standing
	s.calls.Add(1)
	trial := int64(0)
	if s.strikes.Load() > 0 {
		trial = 1
	}
	s.trials.Add(trial)
	return NewLease(one.Instance, func(o Outcome) {
		switch o {
		case Unreachable:
			s.demote(c.elapsed())
			c.metrics.demotions.Inc()
		case OK:
			s.clear()
		}
		s.trials.Add(-trial)
		s.calls.Add(-1)
	})
}

// elapsed returns the time since New, on a monotonic clock.
func (c *Catalogue) elapsed() time.Duration { return c.opts.Now().Sub(c.begun) }

// Pick chooses a healthy instance of an application for a call. It does not choose an instance in tried. An instance
// that a recent call could not reach is demoted for some seconds. Pick prefers instances in this order:
//
//  1. not demoted
//  2. on this node
//  3. fewest outstanding calls of this node
//  4. least load, as reported by the instance's node
//
// Among equal instances it chooses at random. If all are demoted, it chooses the one whose demotion ends first.
// Errors:
//
//	not_found    all nodes have reported, and none has ever served the application
//	unavailable  no further instance can be called now; the message has the reason
func (c *Catalogue) Pick(app App, tried []Instance) (*Lease, error) {
	app = app.Canonical()
	v := c.view.Load()
	all := v.candidates(app)
	best := c.choose(all, tried)
	if best == nil {
		return nil, c.noInstance(app, all, tried)
	}
	return c.lease(best), nil
}

// PickInTurn is like Pick, except that consecutive values of turn select consecutive instances in the order of node
// ids. It skips instances that are in tried, are demoted or cannot be called. If no instance is left, it does the same
// as Pick.
func (c *Catalogue) PickInTurn(app App, turn uint64, tried []Instance) (*Lease, error) {
	now := c.elapsed()
	var ready []*candidate
	all := c.view.Load().candidates(app.Canonical())
	for i := range all {
		if one := &all[i]; one.callable(tried) && !one.standing.demoted(now) {
			ready = append(ready, one)
		}
	}
	if len(ready) == 0 {
		return c.Pick(app, tried)
	}
	return c.lease(ready[turn%uint64(len(ready))]), nil
}

// callable reports whether the instance can be called and is not in tried. It does not check whether the instance is
// demoted.
func (c *candidate) callable(tried []Instance) bool {
	return c.Healthy && c.Protocol != "" && !c.unreachable() && !isTried(c, tried)
}

// choose returns the best candidate, or nil if none can be called.
func (c *Catalogue) choose(all []candidate, tried []Instance) *candidate {
	now := c.elapsed()
	var best *candidate
	var rank order
	equals := 0
	for i := range all {
		one := &all[i]
		if !one.callable(tried) {
			continue
		}
		o := one.order(now)
		switch d := o.compare(rank); {
		case best == nil || d < 0:
			best, rank, equals = one, o, 1
		case d == 0:
			if equals++; c.opts.Chance(equals) == 0 {
				best = one
			}
		}
	}
	return best
}

// order is the rank of a candidate; the lower rank is better. The first element in which two ranks differ decides.
type order [4]int64

func (a order) compare(b order) int {
	for i := range a {
		if a[i] != b[i] {
			if a[i] < b[i] {
				return -1
			}
			return 1
		}
	}
	return 0
}

func (c *candidate) order(now time.Duration) order {
	var o order
	if c.standing.demoted(now) {
		o[0] = 1 + max(c.standing.until.Load(), 0)
	}
	if !c.Local {
		o[1] = 1
	}
	o[2], o[3] = c.standing.calls.Load(), int64(c.Load)
	return o
}

func isTried(c *candidate, tried []Instance) bool {
	for i := range tried {
		if c.Same(&tried[i]) {
			return true
		}
	}
	return false
}

// settleTime is how long this node counts as just started. During this time, records of other nodes may still be
// missing.
const settleTime = 3 * time.Second

// Settling reports whether this node may learn within seconds which nodes serve app. It returns false if any node has
// ever reported app. Otherwise it returns true in two cases:
//
//   - This node has just started and joins other nodes.
//   - Another node has just joined and has not reported yet.
func (c *Catalogue) Settling(app App) bool {
	app = app.Canonical()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.machine.Seen(app) {
		return false
	}
	return c.opts.Arrival > 0 && c.elapsed() < settleTime || c.machine.Expecting(c.opts.Now())
}

// maxReasons is the maximum number of instances for which an error gives a reason.
const maxReasons = 5

// noInstance returns the error that explains why there is no instance to call.
func (c *Catalogue) noInstance(app App, all []candidate, tried []Instance) error {
	const op = "discovery.Pick"
	if len(all) == 0 {
		c.mu.Lock()
		seen, expecting := c.machine.Seen(app), c.machine.Expecting(c.opts.Now())
		alone := !c.met && c.elapsed() < c.opts.Arrival
		c.mu.Unlock()
		if !seen && alone {
			return &fault.Error{
				Code: fault.Unavailable, Op: op, Key: app.String(), Hint: "try again in a moment",
				Msg: "this node has just started and has not met another node yet: it does not know which node " +
					"serves the application " + app.String(),
			}
		}
		if !seen && expecting {
			return &fault.Error{Code: fault.Unavailable, Op: op, Key: app.String(),
				Msg: "no node serves the application " + app.String() +
					" as far as this one knows, and nodes that have just joined have not reported yet what they serve"}
		}
		if !seen {
			return &fault.Error{Code: fault.NotFound, Op: op, Key: app.String(),
				Msg:  "no node serves the application " + app.String() + ": couldn't find service: " + app.String(),
				Hint: "start it beside a node with --app-id and --app-port; quorate apps lists what there is"}
		}
		return &fault.Error{Code: fault.Unavailable, Op: op, Key: app.String(),
			Msg:  "every node that served the application " + app.String() + " is gone",
			Hint: "quorate members says which nodes have left or failed"}
	}
	var why []string
	for i := range all {
		why = append(why, c.whyNot(&all[i], tried))
	}
	if n := len(why); n > maxReasons {
		why = append(why[:maxReasons], fmt.Sprintf("and %d more", n-maxReasons))
	}
	return &fault.Error{Code: fault.Unavailable, Op: op, Key: app.String(),
		Msg: "no instance of the application " + app.String() + " can be called: " + strings.Join(why, "; ")}
}

func (c *Catalogue) whyNot(one *candidate, tried []Instance) string {
	switch {
	case isTried(one, tried):
		return "on node " + one.Node + " it did not answer"
	case one.Protocol == "":
		return "node " + one.Node + " has no --app-port for it"
	case one.unreachable():
		return "node " + one.Node + " belongs to no cluster yet"
	}
	if one.Local && c.opts.WhyUnhealthy != nil {
		if why := c.opts.WhyUnhealthy(one.App); why != "" {
			return "on this node, " + one.Node + ": " + why + ": app is not in a healthy state"
		}
	}
	return "on node " + one.Node + " it is not healthy, or has not opened its port yet: app is not in a healthy state"
}
