package loader

import (
	"context"
	"slices"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/middleware"
)

// filterOf opens a middleware.
func (p *opening) filterOf(ctx context.Context, u *unit) error {
	if p.carry(u) {
		return nil
	}
	filter, closing, err := u.filter.Open(ctx, MiddlewareConfig{Name: u.spec.Name, Metadata: u.values,
		Logger: u.logger(p.options.Logger)})
	if err != nil {
		return u.opened(err)
	}
	i := &middleware.Instance{Name: u.spec.Name, Type: u.typ(), Filter: filter, Close: closing}
	p.set.add(u, &closer{name: i.Name, close: closing}, func(s *Set, u *unit) {
		s.filters = append(s.filters, i)
		s.statuses = append(s.statuses, statusOf(u.spec, component.Ready, ""))
	})
	return nil
}

// Middleware returns the middleware with the given component name. Case matters.
func (s *Set) Middleware(name string) (*middleware.Instance, bool) {
	for _, i := range s.filters {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

// MiddlewareNames returns the names of all middleware.
func (s *Set) MiddlewareNames() (out []string) {
	for _, i := range s.filters {
		out = append(out, i.Name)
	}
	return out
}

// Endpoint is an HTTPEndpoint with the values of its references.
type Endpoint struct {
	component.HTTPEndpoint
	Settings component.EndpointSettings
	digest   string
}

// httpEndpoints resolves the references of all HTTP endpoints. If an endpoint fails during a reload, httpEndpoints
// records the error and continues. The new set then has the previous version of this endpoint, if there is one.
func (p *opening) httpEndpoints(ctx context.Context, all []component.HTTPEndpoint) error {
	for _, e := range all {
		bounded, cancel := context.WithTimeout(ctx, component.DefaultInitTimeout)
		made, err := p.endpoint(bounded, e)
		cancel()
		switch {
		case err == nil:
			p.set.endpoints = append(p.set.endpoints, made)
		case p.old == nil || ctx.Err() != nil:
			return err
		default:
			p.failures = append(p.failures, err)
			if old, ok := p.old.endpoint(e.Name); ok {
				p.set.endpoints = append(p.set.endpoints, old)
			}
		}
	}
	return nil
}

func (p *opening) endpoint(ctx context.Context, e component.HTTPEndpoint) (*Endpoint, error) {
	settings, err := e.Resolve(ctx, p.sources())
	if err != nil {
		return nil, err
	}
	made := &Endpoint{HTTPEndpoint: e, Settings: settings}
	made.digest = e.Digest(settings)
	if old, ok := p.old.endpoint(e.Name); ok && old.digest == made.digest {
		return old, nil // the same endpoint keeps its connections
	}
	return made, nil
}

// Endpoints returns the HTTP endpoints in the order of the files.
func (s *Set) Endpoints() []*Endpoint { return slices.Clone(s.endpoints) }

func (s *Set) endpoint(name string) (*Endpoint, bool) {
	if s == nil {
		return nil, false
	}
	for _, e := range s.endpoints {
		if e.Name == name {
			return e, true
		}
	}
	return nil, false
}
