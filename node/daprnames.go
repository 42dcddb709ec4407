package node

import (
	"slices"
	"strings"

	"google.golang.org/grpc/stats"

	"github.com/quorate/quorate/api"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/daprmetrics"
	"github.com/quorate/quorate/internal/pathpattern"
	"github.com/quorate/quorate/node/calls"
	"github.com/quorate/quorate/node/credentials"
	"github.com/quorate/quorate/node/inputs"
	"github.com/quorate/quorate/node/jobs"
)

// daprNames records the metrics with Dapr's names. The zero value records nothing and has nil observers.
type daprNames struct{ *daprmetrics.Metrics }

// openDaprNames registers the metrics with Dapr's names, if the Configuration resource enables them.
func (n *Node) openDaprNames() (err error) {
	c := n.apis.declared.Metrics
	if c == nil || !c.DaprNames || !c.Enabled || n.config.Metrics.Off {
		return nil
	}
	patterns, err := pathpattern.New(c.Paths)
	if err != nil {
		return err
	}
	n.apis.dapr.Metrics, err = daprmetrics.New(daprmetrics.Options{
		App: n.config.App.ID, Namespace: n.config.Namespace, Buckets: c.Buckets, Paths: !c.NoPaths,
		ExcludeVerbs: c.ExcludeVerbs, ErrorCodes: c.ErrorCodes, Patterns: patterns,
	}, n.deps.Registry)
	if err != nil || n.credentials == nil {
		return err
	}
	main := n.apis.dapr.App(n.config.App.ID)
	main.Secured()
	n.credentials.Report(main)
	return nil
}

var _ credentials.Observer = (*daprmetrics.App)(nil)

func (d daprNames) http(app string) apihttp.Observer {
	if d.Metrics == nil {
		return nil
	}
	return d.App(app)
}

func (d daprNames) grpc(app string) stats.Handler {
	if d.Metrics == nil {
		return nil
	}
	return d.App(app).GRPCServer()
}

func (d daprNames) operations(app string) api.Observer {
	if d.Metrics == nil {
		return nil
	}
	return d.App(app)
}

func (d daprNames) channel(app string) appchannel.Observer {
	if d.Metrics == nil {
		return nil
	}
	return d.App(app)
}

func (d daprNames) invocation() invoke.Observer {
	if d.Metrics == nil {
		return nil
	}
	return d.Metrics
}

// eventObservers returns what observes the events of input bindings.
func (s *apiServers) eventObservers() inputs.Observers {
	out := inputs.Observers{}
	for _, a := range s.apps {
		out[a.ID] = s.dapr.operations(a.ID)
	}
	return out
}

// jobObservers returns what observes the deliveries of jobs.
func (s *apiServers) jobObservers() map[string]jobs.Observer {
	out := map[string]jobs.Observer{}
	if s.dapr.Metrics != nil {
		for _, a := range s.apps {
			out[a.ID] = s.dapr.App(a.ID)
		}
	}
	return out
}

// loaded counts the components that were opened, and those that could not be opened. It is called after the start of
// the node and after each reload. now has the current states of the components. before has those before the reload,
// and is nil after the start.
func (d daprNames) loaded(app string, before, now []component.Status, c loader.Changes) {
	if d.Metrics == nil {
		return
	}
	of := d.App(app)
	for _, s := range now {
		block, _, _ := strings.Cut(s.Type, ".")
		opened := before == nil || slices.Contains(append(slices.Clip(c.Added), c.Changed...), block+" "+s.Name)
		switch {
		case s.State == component.Ready && opened:
			of.ComponentOpened(s.Type)
		case s.State == component.Failed && !slices.ContainsFunc(before, func(b component.Status) bool {
			return b.Name == s.Name && b.Reason == s.Reason
		}):
			of.ComponentFailed(s.Type, s.Name)
		}
	}
}

// policies counts the Resiliency resources that are in effect.
func (d daprNames) policies(app string, r calls.Rules) {
	if d.Metrics == nil {
		return
	}
	for _, one := range r.Resiliency {
		d.App(app).PoliciesLoaded(one.Name)
	}
}
