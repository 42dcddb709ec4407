package node

import (
	"reflect"
	"slices"
	"strings"

	"google.golang.org/grpc/stats"

	"github.com/quorate/quorate/api"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/pubsub"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/daprmetrics"
	"github.com/quorate/quorate/internal/pathpattern"
	"github.com/quorate/quorate/node/calls"
	"github.com/quorate/quorate/node/credentials"
	"github.com/quorate/quorate/node/inputs"
	"github.com/quorate/quorate/node/jobs"
	"github.com/quorate/quorate/node/workflows"
)

// daprNames records metrics under the names that Dapr uses. The zero value records nothing, and its methods return nil
// instead of an observer.
type daprNames struct{ *daprmetrics.Metrics }

// openDaprNames registers the metrics that have Dapr's names if the Configuration resource enables them. A node with
// Dapr's defaults registers them in any case, because a changed Configuration may enable them later. A node without a
// metrics listener registers none.
func (n *Node) openDaprNames() (err error) {
	n.apis.measured = n.apis.declared.Metrics
	o, err := n.apis.daprOptions(n.apis.measured)
	if err != nil || n.config.Metrics.Off || o == nil && !n.config.Dapr {
		return err
	}
	n.apis.dapr.Metrics, err = daprmetrics.New(o, n.deps.Registry)
	if err != nil || n.credentials == nil {
		return err
	}
	main := n.apis.dapr.App(n.config.App.ID)
	main.Secured()
	n.credentials.Report(main)
	return nil
}

// daprOptions returns the options of the metrics with Dapr's names. It returns nil if these metrics are not exported.
func (s *apiServers) daprOptions(c *component.MetricsConfig) (*daprmetrics.Options, error) {
	if c == nil || !c.DaprNames || !c.Enabled {
		return nil, nil
	}
	patterns, err := pathpattern.New(c.Paths)
	return &daprmetrics.Options{
		App: s.config.App.ID, Namespace: s.config.Namespace, Buckets: c.Buckets, Paths: !c.NoPaths,
		ExcludeVerbs: c.ExcludeVerbs, ErrorCodes: c.ErrorCodes, Patterns: patterns,
	}, err
}

// changeMetrics handles a change of the metrics section in the Configuration resource. The parameter c is the new
// section. A node that runs with Dapr's defaults applies the change at once. Any other node only logs that a restart is
// needed.
func (s *apiServers) changeMetrics(c *component.MetricsConfig) {
	if reflect.DeepEqual(metricsOf(s.measured), metricsOf(c)) {
		return
	}
	s.measured = c
	if s.dapr.Metrics == nil || !s.config.Dapr {
		s.deps.Logger.Warn("spec.metrics of the Configuration changed; it takes effect with the next start",
			"hint", "restart the node")
		return
	}
	o, err := s.daprOptions(c)
	if err == nil {
		err = s.dapr.Change(o)
	}
	if err != nil {
		s.deps.Logger.Error("spec.metrics of the Configuration was not applied", "error", err)
		return
	}
	s.metricsOff.Store(!metricsOf(c).Enabled)
	s.deps.Logger.Info("spec.metrics of the Configuration was applied")
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

// eventObservers returns the observers of input binding events, by application id.
func (s *apiServers) eventObservers() inputs.Observers {
	out := inputs.Observers{}
	for _, a := range s.apps {
		out[a.ID] = s.dapr.operations(a.ID)
	}
	return out
}

// jobObservers returns the observers of job deliveries, by application id.
func (s *apiServers) jobObservers() map[string]jobs.Observer {
	out := map[string]jobs.Observer{}
	if s.dapr.Metrics != nil {
		for _, a := range s.apps {
			out[a.ID] = s.dapr.App(a.ID)
		}
	}
	return out
}

// messages returns the observer of messages that an application publishes or receives. It returns nil if these messages
// are not observed.
func (d daprNames) messages(app string) pubsub.Observer {
	if d.Metrics == nil {
		return nil
	}
	return d.App(app)
}

// workflows returns the observer of the workflows of an application; nil = none.
func (d daprNames) workflows(app string) workflows.Observer {
	if d.Metrics == nil {
		return nil
	}
	return d.App(app)
}

// loaded counts the components that were opened, and those that could not be opened. Call it after the start of the
// node and after each reload. The parameters previous and current have the status of each component before and after
// the reload, and c has the changes of the reload. After the start, previous is nil.
func (d daprNames) loaded(app string, previous, current []component.Status, c loader.Changes) {
	if d.Metrics == nil {
		return
	}
	of := d.App(app)
	for _, s := range current {
		block, _, _ := strings.Cut(s.Type, ".")
		opened := previous == nil || slices.Contains(append(slices.Clip(c.Added), c.Changed...), block+" "+s.Name)
		switch {
		case s.State == component.Ready && opened:
			of.ComponentOpened(s.Type)
		case s.State == component.Failed && !slices.ContainsFunc(previous, func(b component.Status) bool {
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
