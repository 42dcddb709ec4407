package api

import (
	"context"
	"slices"
	"strings"
)

// NodeHealth is what the node can tell about itself. Implementations are safe for
// concurrent use and answer from memory.
type NodeHealth interface {
	// Starting lists what the start still waits for: components, stores, the
	// application's port. Once it is empty it stays so, whatever happens later.
	Starting() []Reason
	// OutboundStarting lists what calls of the application into the runtime still wait
	// for: components and listeners, not the application itself.
	OutboundStarting() []Reason
	// Readiness tells what works at this moment, per store and replication group.
	Readiness(ctx context.Context) []Check
	// Unplaced tells what keeps a server from its place in the replication groups: the
	// votes it is to get and does not have yet. Replicas that no vote is meant for, and
	// sidecars, are in their place.
	Unplaced() []Reason
}

// Reason says what is not ready, and why.
type Reason struct {
	Name string // the component, store or port
	Text string
}

// Check is the state of one store or replication group.
type Check struct {
	Kind   string // "store", "group", ...
	Name   string
	Reads  bool   // reads work now
	Writes bool   // writes work now
	Reason string // why one of them does not; may be empty
}

// Health answers health probes for one application. It is immutable and safe for
// concurrent use.
type Health struct {
	app  App
	node NodeHealth
}

// NewHealth returns the health service of app.
func NewHealth(app App, node NodeHealth) *Health { return &Health{app: app, node: node} }

// Started is nil once the start is complete; it never turns back. appID, if not empty,
// must be the application's own.
func (h *Health) Started(appID string) error {
	if appID != "" && appID != h.app.ID {
		return notReady(CodeHealthAppID, "this listener serves the application "+h.app.ID+", not "+show(appID))
	}
	return waiting(CodeHealthNotReady, "the runtime is not ready", h.node.Starting())
}

// Outbound is nil once calls from the application into the runtime can be served.
func (h *Health) Outbound() error {
	return waiting(CodeOutboundNotReady, "the runtime is not ready for outbound calls", h.node.OutboundStarting())
}

// Ready tells what works now. The error is not nil if the start is not complete or
// anything does not work; the checks are given in any case.
func (h *Health) Ready(ctx context.Context) ([]Check, error) {
	return h.works(ctx, nil)
}

// Placed is Ready, and not before a server that is to vote does: who updates servers one
// after another waits for it.
func (h *Health) Placed(ctx context.Context) ([]Check, error) {
	return h.works(ctx, h.node.Unplaced())
}

func (h *Health) works(ctx context.Context, unplaced []Reason) ([]Check, error) {
	reasons := slices.Clip(h.node.Starting())
	checks := h.node.Readiness(ctx)
	for _, c := range checks {
		if !c.Reads || !c.Writes {
			reasons = append(reasons, Reason{Name: c.Kind + " " + c.Name, Text: c.problem()})
		}
	}
	return checks, waiting(CodeHealthNotReady, "not everything works", append(reasons, unplaced...))
}

func (c Check) problem() string {
	text := "reads and writes do not work"
	switch {
	case c.Reads:
		text = "writes do not work"
	case c.Writes:
		text = "reads do not work"
	}
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	return text
}

// waiting makes an error of the reasons, if there are any.
func waiting(code, text string, reasons []Reason) error {
	if len(reasons) == 0 {
		return nil
	}
	parts := make([]string, len(reasons))
	details := make([]Attribute, len(reasons))
	for i, r := range reasons {
		parts[i] = r.Name + " (" + r.Text + ")"
		details[i] = Attribute{Name: r.Name, Value: r.Text}
	}
	e := notReady(code, text+": "+strings.Join(parts, ", "))
	e.Details = Details{Reason: ReasonNotReady, Metadata: details}
	return e
}
