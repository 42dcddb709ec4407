package http

import (
	"context"
	"net/http"
	"strconv"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/jsonbody"
)

// healthz serves GET /v1.0/healthz: 204 once the start is complete, permanently.
func (f *Face) healthz(p *reply, r *http.Request) error {
	q, err := parseQuery(r)
	if err != nil {
		return err
	}
	if err := f.health.Started(q.appID); err != nil {
		return err
	}
	p.empty()
	return nil
}

// healthzOutbound serves GET /v1.0/healthz/outbound.
func (f *Face) healthzOutbound(p *reply, _ *http.Request) error {
	if err := f.health.Outbound(); err != nil {
		return err
	}
	p.empty()
	return nil
}

// livez serves GET /livez, which always succeeds.
func (f *Face) livez(p *reply, _ *http.Request) error {
	p.empty()
	return nil
}

// readyz serves GET /readyz: which stores and groups work now.
func (f *Face) readyz(p *reply, r *http.Request) error {
	return f.works(p, r, f.health.Ready)
}

// readyzPlaced serves GET /readyz/placed. It is like /readyz, but a server that waits to become a voter is not ready.
func (f *Face) readyzPlaced(p *reply, r *http.Request) error {
	return f.works(p, r, f.health.Placed)
}

func (f *Face) works(p *reply, r *http.Request, ask func(context.Context) ([]api.Check, error)) error {
	ctx := f.deadline(p, r)
	defer ctx.end()
	checks, err := ask(ctx)
	b := f.buffer()
	defer f.release(b)
	if err != nil {
		b.data = append(jsonbody.AppendError(b.data, api.AsError(err)), `,"ready":false`...)
		b.data = append(appendChecks(b.data, checks), '}')
		p.send(statusNotNow, valueJSON, b.data)
		return nil
	}
	b.data = append(b.data, `{"ready":true`...)
	b.data = append(appendChecks(b.data, checks), '}')
	p.send(http.StatusOK, valueJSON, b.data)
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
