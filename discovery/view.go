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
	Node     string    // node id
	Boot     string    // incarnation of the node
	Server   string    // id under which internal/peer dials the node
	Protocol string    // http, https, h2c, grpc or grpcs; empty = the instance cannot be called
	Healthy  bool      // as reported by its node
	Load     uint8     // as reported by its node: 0 = idle, 1 more for each doubling of the calls in flight
	Local    bool      // the instance is on this node
	Since    time.Time // when this version of its node's record arrived; zero on this node
}

// incarnation returns the incarnation of the instance's node.
func (i *Instance) incarnation() Incarnation { return Incarnation{Node: i.Node, Boot: i.Boot} }

// Same reports whether i and o are the same application on the same incarnation of a node. Health and load do not
// matter.
func (i *Instance) Same(o *Instance) bool {
	return i.App == o.App && i.incarnation() == o.incarnation()
}

// View is what this node knows about all applications at one moment. It is immutable. All methods are safe for
// concurrent use, and the caller may change the returned slices.
type View struct {
	catalogue *Catalogue
	records   []records.Shown // the record of this node is first
	changed   chan struct{}
	found     sync.Map // cache, from App to []candidate
}

// Changed returns a channel that is closed when a newer View replaces v. A caller that then calls Catalogue.View gets
// the latest View, but may miss Views in between.
func (v *View) Changed() <-chan struct{} { return v.changed }

// Instances returns the instances of an application on all live nodes, ordered by node id. Unhealthy instances are
// included.
func (v *View) Instances(app App) []Instance {
	var out []Instance
	for _, c := range v.candidates(app.Canonical()) {
		out = append(out, c.Instance)
	}
	return out
}

// All returns every instance, sorted by application and node id.
func (v *View) All() []Instance {
	var out []Instance
	for i := range v.records {
		for _, e := range v.records[i].Entries {
			out = append(out, v.instance(&v.records[i], e))
		}
	}
	slices.SortFunc(out, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.App.ID, b.App.ID), cmp.Compare(a.App.Namespace, b.App.Namespace),
			cmp.Compare(a.Node, b.Node))
	})
	return out
}

// Apps returns every application that a live node serves, once each, sorted.
func (v *View) Apps() []App {
	var out []App
	for _, i := range v.All() {
		out = append(out, i.App)
	}
	return slices.Compact(out)
}

// Nodes returns the number of live nodes whose record is known, including this node.
func (v *View) Nodes() int { return len(v.records) }

func (v *View) instance(r *records.Shown, e records.Entry) Instance {
	i := Instance{App: e.App, Node: r.Node, Boot: r.Boot, Server: r.Peer, Healthy: e.Healthy, Load: e.Load,
		Since: r.Since}
	if e.Protocol.Callable() {
		i.Protocol = string(e.Protocol)
	}
	if r.Incarnation == v.catalogue.opts.Self {
		i.Local, i.Server = true, v.catalogue.opts.Server
	}
	return i
}

// unreachable reports whether the instance cannot be called because its node belongs to no cluster yet. The peer port
// of such a node accepts no calls.
func (i *Instance) unreachable() bool { return i.Server == "" && !i.Local }

// Condition says whether this node sends calls to an instance, and if not, why. The values are metric labels.
type Condition string

// The conditions.
const (
	Healthy   Condition = "healthy"
	Unhealthy Condition = "unhealthy" // as reported by its node, or the node belongs to no cluster yet
	Demoted   Condition = "demoted"   // a recent call from this node did not reach the instance
	Uncalled  Condition = "uncalled"  // the application has no port
)

// Standing returns the condition of an instance, and the number of outstanding calls from this node to it.
func (c *Catalogue) Standing(i *Instance) (Condition, int64) {
	s := &standing{}
	if met, ok := c.standings.Load(standingKey{i.App, i.incarnation()}); ok {
		s = met.(*standing)
	}
	calls := s.calls.Load()
	switch {
	case i.Protocol == "":
		return Uncalled, calls
	case !i.Healthy || i.unreachable():
		return Unhealthy, calls
	case s.demoted(c.elapsed()):
		return Demoted, calls
	}
	return Healthy, calls
}

// candidate is an instance and the record of this node's calls to it.
type candidate struct {
	Instance
	standing *standing
}

// candidates returns the instances of an application, sorted by node id. It caches a result that is not empty.
func (v *View) candidates(app App) []candidate {
	if found, ok := v.found.Load(app); ok {
		return found.([]candidate)
	}
	var out []candidate
	for i := range v.records {
		r := &v.records[i]
		if e, ok := r.Find(app); ok {
			out = append(out, candidate{v.instance(r, e), v.catalogue.standing(standingKey{app, r.Incarnation})})
		}
	}
	if len(out) == 0 {
		return nil // not cached: the name may be made up
	}
	slices.SortFunc(out, func(a, b candidate) int { return cmp.Compare(a.Node, b.Node) })
	v.found.Store(app, out)
	return out
}
