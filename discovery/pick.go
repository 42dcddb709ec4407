package discovery

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Outcome is what became of a call.
type Outcome uint8

// The outcomes.
const (
	OK          Outcome = iota // the application answered, whatever it answered
	Failed                     // the call reached it and broke; no judgement about the instance
	Unreachable                // it surely never reached the application: the instance is demoted at once
)

// How long an instance is demoted: the time doubles with each call in a row that did not
// reach it.
const (
	firstDemotion = time.Second
	lastDemotion  = 30 * time.Second
)

type standingKey struct {
	app  App
	life Life
}

// standing is how this node fared with an instance.
type standing struct {
	calls   atomic.Int64 // outstanding
	strikes atomic.Int32 // calls in a row that did not reach it
	until   atomic.Int64 // it is demoted until then; time since Catalogue.begun
}

// demoted reports whether calls are kept from an instance. When its time is over one call
// may try it; only after that has succeeded may more.
func (s *standing) demoted(now time.Duration) bool {
	return s.strikes.Load() > 0 && (now < time.Duration(s.until.Load()) || s.calls.Load() > 0)
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

// readmit ends the demotion of instances.
func (c *Catalogue) readmit(which func(standingKey) bool) {
	c.standings.Range(func(k, s any) bool {
		if which(k.(standingKey)) {
			s.(*standing).clear()
		}
		return true
	})
}

// prune forgets instances that are gone and have no calls.
func (c *Catalogue) prune() {
	alive := map[Life]bool{}
	for _, r := range c.view.Load().records {
		alive[r.Life] = true
	}
	c.standings.Range(func(k, s any) bool {
		if !alive[k.(standingKey).life] && s.(*standing).calls.Load() == 0 {
			c.standings.Delete(k)
		}
		return true
	})
}

// Lease is the choice of an instance for one call. It must be given back by Done.
type Lease struct {
	Instance  Instance
	standing  *standing
	catalogue *Catalogue
	over      atomic.Bool
}

// Done says what became of the call. Further calls of it do nothing.
func (l *Lease) Done(o Outcome) {
	if l.over.Swap(true) {
		return
	}
	switch o {
	case Unreachable:
		l.standing.demote(l.catalogue.elapsed())
		l.catalogue.metrics.demotions.Inc()
	case OK:
		l.standing.clear()
	}
	l.standing.calls.Add(-1)
}

// elapsed is the time since New, on a clock that never goes back.
func (c *Catalogue) elapsed() time.Duration { return c.opts.Now().Sub(c.begun) }

// Pick chooses an instance for a call, never one of tried: this node's own if it has one,
// else the one with the fewest calls of this node outstanding, among equals the one whose
// node reports the least load, then any. Demoted instances are taken when there are no
// others, the one whose time is over first. Errors:
//
//	not_found    no node has ever said that it serves the application, and all were asked
//	unavailable  no further instance can be called now; the message says why
func (c *Catalogue) Pick(app App, tried []Instance) (*Lease, error) {
	app = app.Canonical()
	v := c.view.Load()
	all := v.candidates(app)
	best := c.choose(all, tried)
	if best == nil {
		return nil, c.nobody(app, all, tried)
	}
	best.standing.calls.Add(1)
	return &Lease{Instance: best.Instance, standing: best.standing, catalogue: c}, nil
}

// choose returns the best candidate; nil if none can be called.
func (c *Catalogue) choose(all []candidate, tried []Instance) *candidate {
	now := c.elapsed()
	var best *candidate
	var rank order
	equals := 0
	for i := range all {
		one := &all[i]
		if !one.Healthy || one.Protocol == "" || one.unreachable() || isTried(one, tried) {
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

// order is how good a choice a candidate is; lower is better, the first difference counts.
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

// maxReasons bounds the instances that an error is about.
const maxReasons = 5

// nobody says why there is no instance to call.
func (c *Catalogue) nobody(app App, all []candidate, tried []Instance) error {
	const op = "discovery.Pick"
	if len(all) == 0 {
		c.mu.Lock()
		seen, expecting := c.machine.Seen(app), c.machine.Expecting(c.opts.Now())
		c.mu.Unlock()
		if !seen && expecting {
			return &fault.Error{Code: fault.Unavailable, Op: op, Key: app.String(), Msg: "no node serves the application " + app.String() + " as far as this one knows, and nodes that it has just met have yet to say what they serve"}
		}
		if !seen {
			return &fault.Error{Code: fault.NotFound, Op: op, Key: app.String(), Msg: "no node serves the application " + app.String(),
				Hint: "start it beside a node with --app-id and --app-port; quorate apps lists what there is"}
		}
		return &fault.Error{Code: fault.Unavailable, Op: op, Key: app.String(), Msg: "every node that served the application " + app.String() + " is gone",
			Hint: "quorate members says which nodes have left or failed"}
	}
	var why []string
	for i := range all {
		why = append(why, whyNot(&all[i], tried))
	}
	if n := len(why); n > maxReasons {
		why = append(why[:maxReasons], fmt.Sprintf("and %d more", n-maxReasons))
	}
	return &fault.Error{Code: fault.Unavailable, Op: op, Key: app.String(),
		Msg: "no instance of the application " + app.String() + " can be called: " + strings.Join(why, "; ")}
}

func whyNot(c *candidate, tried []Instance) string {
	switch {
	case isTried(c, tried):
		return "on node " + c.Node + " it did not answer"
	case c.Protocol == "":
		return "node " + c.Node + " has no --app-port for it"
	case c.unreachable():
		return "node " + c.Node + " belongs to no cluster yet"
	default:
		return "on node " + c.Node + " it is not healthy"
	}
}
