package node

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/quorate/quorate/api"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/middleware"
	"github.com/quorate/quorate/component/middleware/routeralias"
	"github.com/quorate/quorate/component/middleware/uppercase"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/tracing"
	"github.com/quorate/quorate/node/calls"
	"github.com/quorate/quorate/node/components"
)

// readDeclared reads the Configuration resources. It must run before anything is opened, because these resources
// configure tracing, metrics and the API. A later step opens the components that the same files declare.
func (n *Node) readDeclared(context.Context) error {
	n.apis = newAPIServers(n.config, n.apps(), n.deps, &n.closers, n.stopper.shutdown)
	if n.place.front != nil {
		return nil
	}
	plan, err := components.Read(n.config.sources(n.deps))
	if err != nil {
		return err
	}
	rules, err := calls.ReadRules(plan, n.config.reading())
	n.apis.declared = rules.Conf
	return err
}

// prepareAPI applies the Configuration at the start to the API, before the API listens.
func (n *Node) prepareAPI() {
	n.apis.surface.Set(n.apis.declared.API)
	n.apis.callLog.Set(n.config.API.callLogRule(n.apis.declared))
	n.apis.pipeline = apihttp.NewPipeline(len(n.apis.declared.Pipeline) > 0)
}

func (a API) callLogRule(c component.Configuration) api.CallLogRule {
	r := api.CallLogRule{Enabled: a.LogCalls}
	if l := c.APILog; l != nil {
		r.Enabled, r.ObfuscateURLs, r.OmitHealth = r.Enabled || l.Enabled, l.ObfuscateURLs, l.OmitHealth
	}
	return r
}

// exportOf converts the tracing section of the Configuration to settings of package tracing. It returns nil if t is
// nil.
func exportOf(t *component.TracingConfig) *tracing.Declared {
	if t == nil {
		return nil
	}
	d := &tracing.Declared{SamplingRate: t.SamplingRate, Zipkin: t.Zipkin}
	if o := t.OTLP; o != nil {
		d.Endpoint, d.Protocol, d.Insecure, d.Headers, d.Timeout = o.Endpoint, o.Protocol, o.Insecure, o.Headers,
			o.Timeout
	}
	return d
}

// applyRules applies the Configuration, Resiliency and HTTPEndpoint resources of a set. If full is false, it applies
// only the middleware and the HTTPEndpoint resources. If it returns an error, nothing has changed.
func (n *Node) applyRules(set *loader.Set, full bool) error {
	rules, err := calls.ReadRules(set, n.config.reading())
	if err != nil {
		return err
	}
	filters, err := pipelineOf("httpPipeline", rules.Conf.Pipeline, set)
	if err != nil {
		return err
	}
	appFilters, err := pipelineOf("appHttpPipeline", rules.Conf.AppPipeline, set)
	if err != nil {
		return err
	}
	traced, tracer := exportOf(rules.Conf.Tracing), (*tracing.Tracer)(nil) // nil = tracing does not change
	if full && !reflect.DeepEqual(n.apis.traced, traced) {
		if tracer, err = tracing.Open(context.Background(), n.apis.tracingOptions(traced)); err != nil {
			return err
		}
	}
	if full { // the last step that can fail
		if err := reidentify(n, rules.Access); err != nil {
			if tracer != nil {
				err = errors.Join(err, tracer.Close(context.Background())) // it has no spans to export
			}
			return err
		}
	}
	n.apis.pipeline.Set(filters)
	n.calls.SetFilters(appFilters)
	n.calls.Externals().Set(n.externals(set), n.apis.anyEndpoint(), n.config.API.AnyEndpoint)
	if !full {
		return nil
	}
	for _, w := range rules.Unused {
		n.deps.Logger.Warn(w.String())
	}
	for _, err := range rules.Rejected {
		n.deps.Logger.Error("a Resiliency resource has no effect", "error", err)
	}
	n.apis.surface.Set(rules.Conf.API)
	n.apis.callLog.Set(n.config.API.callLogRule(rules.Conf))
	n.calls.SetRules(rules, n.config.trust())
	n.apis.dapr.policies(n.config.App.ID, rules)
	if tracer != nil {
		n.apis.changeTracing(traced, tracer)
	}
	n.apis.changeMetrics(rules.Conf.Metrics)
	return nil
}

// reidentify issues a certificate with the trust domain of the access control rules. If there are no rules, access is
// nil, and the certificate has the default trust domain. If the certificate changes, reidentify also replaces the
// connections to other nodes.
func reidentify(n *Node, access *component.AccessControl) error {
	domain := ""
	if access != nil {
		domain = access.TrustDomain
	}
	changed, err := n.credentials.Identify(n.certificate(domain))
	if err == nil && changed {
		connections{n.network, n.calls}.Renew()
	}
	return err
}

// exportTime is the maximum time for sending the last spans to the old collectors when a reload replaces them.
const exportTime = 2 * time.Second

// changeTracing replaces the collectors of the tracer with those of next. The tracing section d declares the new
// collectors.
func (s *apiServers) changeTracing(d *tracing.Declared, next *tracing.Tracer) {
	ctx, cancel := context.WithTimeout(context.Background(), exportTime)
	defer cancel()
	s.traced = d
	if err := s.tracer.Change(ctx, next); err != nil {
		s.deps.Logger.Warn("the previous collectors did not receive the last spans", "error", err)
	}
	s.deps.Logger.Info("spec.tracing of the Configuration was applied")
}

func (s *apiServers) tracingOptions(d *tracing.Declared) tracing.Options {
	c := s.config
	return tracing.Options{Service: c.App.ID, Namespace: c.Namespace, Version: c.Version, Env: s.deps.Env,
		Logger: s.deps.Logger, Declared: d}
}

func metricsOf(m *component.MetricsConfig) component.MetricsConfig {
	if m == nil {
		return component.MetricsConfig{Enabled: true}
	}
	c := *m
	c.Pos = component.Pos{}
	return c
}

// pipelineOf returns the middleware that a section of the Configuration lists. A missing component is an error, because
// the API or the application could lack protection. The types routeralias and uppercase protect nothing, so components
// of these types may be missing.
func pipelineOf(section string, handlers []component.PipelineHandler, set *loader.Set) (out []*middleware.Instance,
	err error) {
	out = []*middleware.Instance{}
	for _, h := range handlers {
		i, ok := set.Middleware(h.Name)
		switch {
		case ok && component.SameType(i.Type, h.Type):
			out = append(out, i)
		case component.SameType(h.Type, routeralias.Type), component.SameType(h.Type, uppercase.Type):
		default:
			have := "no middleware is declared"
			if names := set.MiddlewareNames(); len(names) > 0 {
				have = "there is " + strings.Join(names, ", ")
			}
			return nil, &fault.Error{Code: fault.Invalid, Op: "node.Open", Key: h.Name,
				Msg: h.Pos.String() + ": spec." + section + " names the handler " + h.Name + " of type " + h.Type +
					", and no such component was opened",
				Hint: "declare a component of that name and type; " + have}
		}
	}
	return out, nil
}

// externals returns the HTTP endpoints that the set declares. An unchanged endpoint keeps its transport, so its open
// connections stay open.
func (n *Node) externals(set *loader.Set) (out []*invoke.External) {
	before := map[any]*http.Transport{}
	for _, x := range n.calls.Externals().Declared() {
		before[x.Origin] = x.Transport
	}
	for _, e := range set.Endpoints() {
		x := &invoke.External{Name: e.Name, Base: e.BaseURL, Header: e.Settings.Header,
			VisibleTo: e.VisibleTo, Origin: e,
			Transport: before[e]}
		if x.Transport == nil {
			x.Transport = externalTransport(e.Settings.TLS, n.config.API)
		}
		out = append(out, x)
	}
	return out
}

// anyEndpoint returns the transport for calls to addresses that no HTTPEndpoint declares.
func (s *apiServers) anyEndpoint() *http.Transport {
	s.anyOnce.Do(func() {
		s.anyTransport = externalTransport(&tls.Config{MinVersion: tls.VersionTLS12}, s.config.API)
	})
	return s.anyTransport
}

func externalTransport(secured *tls.Config, a API) *http.Transport {
	t := invoke.NewTransport(secured)
	t.MaxResponseHeaderBytes = a.maxHead()
	return t
}
