package discovery

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/discovery/records"
)

// Instance is one application on one node.
type Instance struct {
	App      App
	Node     string // node id
	Boot     string // run of the node
	Server   string // id under which internal/peer dials the node
	Protocol string // http, https, h2c, grpc or grpcs; empty = it cannot be called
	Healthy  bool   // as its node says
	Load     uint8  // as its node says: 0 is idle, one more for each doubling of calls in flight
	Local    bool   // it is on this very node
	Since    time.Time
}

// life is the run of the node that the instance is on.
func (i *Instance) life() Life { return Life{Node: i.Node, Boot: i.Boot} }

// Same reports whether two instances are one, whatever is said about it.
func (i *Instance) Same(o *Instance) bool { return i.App == o.App && i.life() == o.life() }

// View is what a node knows of all applications at one moment. It never changes; Changed
// tells when there is a newer one. All methods are safe for concurrent use, and what they
// return belongs to the caller.
type View struct {
	catalogue *Catalogue
	records   []records.Shown // this node's own first
	changed   chan struct{}
	found     sync.Map // App to []candidate: what was looked up once
}

// Changed is closed when Catalogue.View returns a newer view than this. Whoever looks after
// each change sees the last one, but not every one on the way.
func (v *View) Changed() <-chan struct{} { return v.changed }

// Instances returns the instances of an application on all nodes that are alive, healthy or
// not, by node id.
func (v *View) Instances(app App) []Instance {
	var out []Instance
	for _, c := range v.candidates(app.Canonical()) {
		out = append(out, c.Instance)
	}
	return out
}

// All returns every instance, by application and node id.
func (v *View) All() []Instance {
	var out []Instance
	for i := range v.records {
		for _, e := range v.records[i].Entries {
			out = append(out, v.instance(&v.records[i], e))
		}
	}
	slices.SortFunc(out, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.App.ID, b.App.ID), cmp.Compare(a.App.Namespace, b.App.Namespace), cmp.Compare(a.Node, b.Node))
	})
	return out
}

// Apps returns every application that any node serves.
func (v *View) Apps() []App {
	var out []App
	for _, i := range v.All() {
		out = append(out, i.App)
	}
	return slices.Compact(out)
}

// Nodes is the number of nodes whose record is known.
func (v *View) Nodes() int { return len(v.records) }

func (v *View) instance(r *records.Shown, e records.Entry) Instance {
	i := Instance{App: e.App, Node: r.Node, Boot: r.Boot, Server: r.Peer, Healthy: e.Healthy, Load: e.Load, Since: r.Since}
	if e.Protocol.Callable() {
		i.Protocol = string(e.Protocol)
	}
	if r.Life == v.catalogue.opts.Self {
		i.Local, i.Server = true, v.catalogue.opts.Server
	}
	return i
}

// unreachable reports whether the node's peer port cannot be dialled: it belongs to no
// cluster yet.
func (i *Instance) unreachable() bool { return i.Server == "" && !i.Local }

// Condition is whether an instance is called from here. The set is closed; its texts are
// metric labels.
type Condition string

// The conditions.
const (
	Healthy   Condition = "healthy"
	Unhealthy Condition = "unhealthy" // as its node says
	Demoted   Condition = "demoted"   // calls from here did not reach it a moment ago
	Uncalled  Condition = "uncalled"  // it has no port
)

// Standing is the condition of an instance, and how many calls from here it is serving.
func (c *Catalogue) Standing(i *Instance) (Condition, int64) {
	s := &standing{}
	if met, ok := c.standings.Load(standingKey{i.App, i.life()}); ok {
		s = met.(*standing)
	}
	calls := s.calls.Load()
	switch {
	case i.Protocol == "":
		return Uncalled, calls
	case !i.Healthy:
		return Unhealthy, calls
	case s.demoted(c.elapsed()):
		return Demoted, calls
	}
	return Healthy, calls
}

// candidate is an instance and how this node fared with it.
type candidate struct {
	Instance
	standing *standing
}

// candidates are the instances of an application, by node id; they are looked up once.
func (v *View) candidates(app App) []candidate {
	if found, ok := v.found.Load(app); ok {
		return found.([]candidate)
	}
	var out []candidate
	for i := range v.records {
		r := &v.records[i]
		if e, ok := r.Find(app); ok {
			out = append(out, candidate{v.instance(r, e), v.catalogue.standing(standingKey{app, r.Life})})
		}
	}
	if len(out) == 0 {
		return nil // a made-up name is not worth remembering
	}
	slices.SortFunc(out, func(a, b candidate) int { return cmp.Compare(a.Node, b.Node) })
	v.found.Store(app, out)
	return out
}
