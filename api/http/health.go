package http

import (
	"context"
	"net/http"
	"strconv"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/jsonbody"
)

// healthRoutes serves health probes.
type healthRoutes struct {
	*core
	health *api.Health
}

func (h *healthRoutes) routes() []route {
	return []route{
		{verbs: "GET", path: "/v1.0/healthz", serve: h.healthz, open: true},
		{verbs: "GET", path: "/v1.0/healthz/outbound", serve: h.healthzOutbound, open: true},
		{verbs: "GET", path: "/livez", serve: h.livez, open: true},
		{verbs: "GET", path: "/readyz", serve: h.readyz, open: true},
		{verbs: "GET", path: "/readyz/placed", serve: h.readyzPlaced, open: true},
	}
}

// healthz serves GET /v1.0/healthz. It answers 204 if the start of the node is complete. Later failures of groups and
// stores do not change this answer. A node that does not belong to the cluster any more answers with an error.
func (h *healthRoutes) healthz(p *reply, r *http.Request) error {
	q, err := parseQuery(r)
	if err != nil {
		return err
	}
	if err := h.health.Started(q.appID); err != nil {
		return err
	}
	p.empty()
	return nil
}

// healthzOutbound serves GET /v1.0/healthz/outbound. It answers 204 if the node can serve the calls that the
// application makes to the node.
func (h *healthRoutes) healthzOutbound(p *reply, _ *http.Request) error {
	if err := h.health.Outbound(); err != nil {
		return err
	}
	p.empty()
	return nil
}

// livez serves GET /livez, which always succeeds.
func (h *healthRoutes) livez(p *reply, _ *http.Request) error {
	p.empty()
	return nil
}

// readyz serves GET /readyz. It answers 200 if the node has started and all stores and groups work, and otherwise 503.
// The body lists the stores and groups.
func (h *healthRoutes) readyz(p *reply, r *http.Request) error {
	return h.works(p, r, h.health.Ready)
}

// readyzPlaced serves GET /readyz/placed. It answers like /readyz, but it also answers 503 while this node waits to
// become a voter of a Raft group.
func (h *healthRoutes) readyzPlaced(p *reply, r *http.Request) error {
	return h.works(p, r, h.health.Placed)
}

func (h *healthRoutes) works(p *reply, r *http.Request, ask func(context.Context) ([]api.Check, error)) error {
	ctx := h.deadline(p, r)
	defer ctx.end()
	checks, err := ask(ctx)
	b := h.buffer()
	defer h.release(b)
	if err != nil {
		b.data = append(jsonbody.AppendError(b.data, api.AsError(err)), `,"ready":false`...)
		b.data = append(appendChecks(b.data, checks), '}')
		p.respond(statusNotNow, valueJSON, b.data)
		return nil
	}
	b.data = append(b.data, `{"ready":true`...)
	b.data = append(appendChecks(b.data, checks), '}')
	p.respond(http.StatusOK, valueJSON, b.data)
	return nil
}

func appendChecks(dst []byte, checks []api.Check) []byte {
	dst = append(dst, `,"checks":[`...)
	for i, c := range checks {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"kind":`...)
		dst = jsonbody.AppendString(dst, c.Kind)
		dst = jsonbody.AppendField(dst, "name", c.Name)
		dst = append(dst, `,"reads":`...)
		dst = strconv.AppendBool(dst, c.Reads)
		dst = append(dst, `,"writes":`...)
		dst = strconv.AppendBool(dst, c.Writes)
		if c.Reason != "" {
			dst = jsonbody.AppendField(dst, "reason", c.Reason)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}
