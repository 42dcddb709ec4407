package api

import (
	"context"
	"slices"
	"strings"
)

// NodeHealth reports the health of the node. Implementations are safe for concurrent use and return without I/O.
type NodeHealth interface {
	// Starting returns what the start still waits for: components, stores, the application's port. Even long after the
	// start, it returns a reason while the cluster refuses this node, for example because the node was removed.
	Starting() []Reason
	// OutboundStarting returns what calls of the application to the runtime still wait for: components and listeners,
	// but not the application itself.
	OutboundStarting() []Reason
	// Readiness returns what works now, per store and replication group.
	Readiness(ctx context.Context) []Check
	// Unplaced returns the replication groups in which this server is to get a vote and does not have it yet, with the
	// reasons. The list is empty for non-voters by configuration and for sidecars.
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
	Reason string // why reads or writes do not work; may be empty
}

// Health answers health probes for one application. It is immutable and safe for concurrent use.
type Health struct {
	app  App
	node NodeHealth
}

// NewHealth returns the health service of app.
func NewHealth(app App, node NodeHealth) *Health { return &Health{app: app, node: node} }

// Started returns nil if the node has completed its start. Otherwise it returns an error with the reasons. appID must
// be empty or the id of the application.
func (h *Health) Started(appID string) error {
	if appID != "" && appID != h.app.ID {
		return notReady(CodeHealthAppID, "this listener serves the application "+h.app.ID+", not "+Shorten(appID))
	}
	return waiting(CodeHealthNotReady, "the runtime is not ready", h.node.Starting())
}

// Outbound returns nil if the runtime can serve requests from the application. Otherwise it returns an error with the
// reasons. Unlike Started, it does not require that the application itself is ready.
func (h *Health) Outbound() error {
	return waiting(CodeOutboundNotReady, "the runtime is not ready for outbound calls", h.node.OutboundStarting())
}

// Ready runs the readiness checks of the node and returns their results. It also returns an error if a check failed
// or the start is not complete.
func (h *Health) Ready(ctx context.Context) ([]Check, error) {
	return h.works(ctx, nil)
}

// Placed is like Ready, but it also fails while this node should be a voter of a Raft group and is not one yet. In a
// rolling update, the next server is restarted only after Placed has succeeded on the previous one.
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

// waiting returns an error with the reasons, or nil if there are none.
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
