package status

import (
	"context"
	"strconv"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node/components"
)

// Starting returns the reasons why the node is not ready yet. When the start itself is complete, these reasons can
// remain:
//
//   - An application has not opened its port yet, or its actor types are not registered yet.
//   - The node is outside of the cluster, for example after its removal or a rescue.
func (r *Reporter) Starting() []api.Reason {
	switch {
	case r.ready.Load():
		var out []api.Reason
		if why := r.parts.Load().Control.Outside(); why != nil {
			out = append(out, *why)
		}
		return append(out, r.applications()...)
	case r.opts.Components.Loaded():
		return []api.Reason{{Name: "node", Text: "the start is being completed"}}
	default:
		return []api.Reason{{Name: "components", Text: "the replicated store and the components are being opened"}}
	}
}

// registering reports whether the actor types of an application that accepts calls are not registered yet.
func (r *Reporter) registering(id string, c *appchannel.Channel) bool {
	if c == nil || !r.opts.Actors.Registering(id, c) {
		return false
	}
	healthy, _ := c.Healthy()
	return healthy
}

// applications returns a reason for each application that is not ready: its port has never been open, or it is healthy
// but its actor types are not registered yet.
func (r *Reporter) applications() (out []api.Reason) {
	for _, id := range r.opts.Apps {
		if c := r.opts.Channels.Channel(id); c != nil && !c.Seen() {
			out = append(out, api.Reason{Name: "application " + id,
				Text: "it has not opened " + c.Target() + " yet"})
		} else if r.registering(id, c) {
			out = append(out, api.Reason{Name: "application " + id, Text: "its actor types are not registered yet"})
		}
	}
	return out
}

// OutboundStarting returns the reasons why the APIs of this node do not serve the applications yet. It returns nil when
// all components are open.
func (r *Reporter) OutboundStarting() []api.Reason {
	if r.opts.Components.Loaded() {
		return nil
	}
	return r.Starting()
}

// Readiness returns a check for each group and each component. A check shows whether reads and writes work now.
// Readiness returns nil until the components are open. While the node stops, it returns one failed check for the node.
func (r *Reporter) Readiness(context.Context) []api.Check {
	if !r.opts.Components.Loaded() {
		return nil
	}
	if r.closing.Load() {
		return []api.Check{{Kind: "node", Name: r.parts.Load().Host.Identity().Node, Reason: "it is stopping"}}
	}
	host := r.parts.Load().Host
	var checks []api.Check
	reads, writes, why := true, true, ""
	for i := range max(host.Partitions(), 1) { // without groups, group 0 reports that their number is not known yet
		c := r.groupCheck(i)
		checks = append(checks, c)
		if !c.Reads || !c.Writes {
			reads, writes, why = reads && c.Reads, writes && c.Writes, "group "+c.Name+": "+c.Reason
		}
	}
	for _, s := range r.opts.Components.Statuses() {
		if text, down := r.outsideDown(s.Name); down {
			checks = append(checks, api.Check{Kind: "store", Name: s.Name, Reason: text})
			continue
		}
		checks = append(checks, storeCheck(s, reads, writes, why)...)
	}
	return checks
}

// outsideDown reports whether the external server of a state store does not answer, and why. It returns false for a
// store without an external server.
func (r *Reporter) outsideDown(store string) (why string, down bool) {
	if i, ok := r.opts.Components.StateStore(store); ok {
		return i.Monitor.Down()
	}
	return "", false
}

// groupCheck checks one group of the replicated store.
func (r *Reporter) groupCheck(id uint32) api.Check {
	host := r.parts.Load().Host
	c := api.Check{Kind: "group", Name: strconv.FormatUint(uint64(id), 10), Reads: true, Writes: true}
	if err := host.Ready(id); err != nil {
		c.Reads, c.Writes, c.Reason = r.opts.Sidecar && host.Route(id).Reads, false, fault.Text(err)
	} else if err := host.WritesAllowed(id); err != nil {
		c.Writes, c.Reason = false, fault.Text(err)
	} else if text := r.formatBlocked(id); text != "" {
		c.Reason = text // reads and writes work
	}
	return c
}

// storeCheck returns a slice with the check of one component, or nil if the component is ignored. The parameters reads,
// writes and reason describe the state of the Raft groups, and are used only for replicated stores.
func storeCheck(s component.Status, reads, writes bool, reason string) []api.Check {
	switch {
	case s.State == component.Ignored:
		return nil
	case s.State == component.Failed:
		return []api.Check{{Kind: "component", Name: s.Name, Reason: s.Reason}}
	case component.SameType(s.Type, components.TypeStateRaft):
		return []api.Check{{Kind: "store", Name: s.Name, Reads: reads, Writes: writes, Reason: reason}}
	default:
		return []api.Check{{Kind: "store", Name: s.Name, Reads: true, Writes: true}}
	}
}

// Unplaced returns a reason for each group in which this server waits to become a voter.
func (r *Reporter) Unplaced() []api.Reason {
	if p := r.parts.Load(); p != nil {
		return p.Control.Unplaced()
	}
	return nil
}
