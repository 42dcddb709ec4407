package http

import (
	"encoding/json"
	"maps"
	"net/http"

	"github.com/quorate/quorate/api"
)

const metadataPrefix = "/v1.0/metadata/"

// runtimeRoutes serves the endpoints about the runtime itself: its metadata, its shutdown and the description of the
// API.
type runtimeRoutes struct {
	*core
	app      api.App
	metadata *api.Metadata
	stop     func(force bool)
}

func (s *runtimeRoutes) routes() []route {
	return []route{
		{verbs: "GET", path: "/v1.0/metadata", serve: s.getMetadata, early: true},
		{verbs: "PUT", path: "/v1.0/metadata/*", serve: s.putMetadata, early: true},
		{verbs: "POST", path: "/v1.0/shutdown", serve: s.shutdown, early: true},
		{verbs: "GET", path: "/openapi.json", serve: s.getOpenAPI, early: true},
	}
}

// metadataBody is the body of the answer to GET /v1.0/metadata. Lists without omitempty are never null, because
// clients iterate over them.
type metadataBody struct {
	ID              string             `json:"id"`
	RuntimeVersion  string             `json:"runtimeVersion"`
	EnabledFeatures []string           `json:"enabledFeatures"`
	ActorRuntime    actorRuntimeBody   `json:"actorRuntime"`
	Actors          []activeActorsBody `json:"actors,omitempty"` // older clients read this list of active actors
	Components      []componentBody    `json:"components"`
	Extended        map[string]string  `json:"extended"`
	Subscriptions   []subscriptionBody `json:"subscriptions"`
	HTTPEndpoints   []nameBody         `json:"httpEndpoints"`
	Resiliencies    []nameBody         `json:"resiliencies"`
	App             appChannelBody     `json:"appConnectionProperties"`
	Applications    []applicationBody  `json:"applications"`  // not in Dapr
	API             *apiBody           `json:"api,omitempty"` // not in Dapr
	Workflows       workflowsBody      `json:"workflows"`
}

// workflowsBody describes the workflow runtime.
type workflowsBody struct {
	ConnectedWorkers int `json:"connectedWorkers"`
}

type apiBody struct {
	HTTP []string `json:"http"`
	GRPC []string `json:"grpc"`
}

type applicationBody struct {
	ID        string `json:"id"`
	Namespace string `json:"namespace,omitempty"`
	Instances int    `json:"instances"`
	Callable  int    `json:"callable"`
}

// subscriptionBody is one subscription. As in Dapr, empty metadata and rules are left out.
type subscriptionBody struct {
	PubSub     string             `json:"pubsubname"`
	Topic      string             `json:"topic"`
	Metadata   map[string]string  `json:"metadata,omitempty"`
	Rules      []subscriptionRule `json:"rules,omitempty"`
	DeadLetter string             `json:"deadLetterTopic"`
	Kind       string             `json:"type"`
}

// subscriptionRule is one rule of a subscription. The default rule has no match expression.
type subscriptionRule struct {
	Match string `json:"match,omitempty"`
	Path  string `json:"path,omitempty"`
}

func subscriptionBodies(all []api.SubscriptionInfo) []subscriptionBody {
	out := make([]subscriptionBody, len(all))
	for i := range all {
		s := &all[i]
		out[i] = subscriptionBody{PubSub: s.PubSub, Topic: s.Topic, Metadata: s.Metadata, DeadLetter: s.DeadLetter,
			Kind: s.Kind}
		for _, r := range s.Rules {
			out[i].Rules = append(out[i].Rules, subscriptionRule(r))
		}
	}
	return out
}

// componentBody is one component. As in Dapr, empty capabilities are left out.
type componentBody struct {
	Name         string   `json:"name"`
	Type         string   `json:"type"`
	Version      string   `json:"version"`
	Capabilities []string `json:"capabilities,omitempty"`
}

type nameBody struct {
	Name string `json:"name"`
}

type appChannelBody struct {
	Port           int    `json:"port,omitempty"`
	Protocol       string `json:"protocol,omitempty"`
	ChannelAddress string `json:"channelAddress,omitempty"`
	MaxConcurrency int    `json:"maxConcurrency,omitempty"`

	Health *appHealthBody `json:"health,omitempty"`
}

type appHealthBody struct {
	Path      string `json:"healthCheckPath,omitempty"`
	Interval  string `json:"healthProbeInterval"`
	Timeout   string `json:"healthProbeTimeout"`
	Threshold int    `json:"healthThreshold"`
}

type actorRuntimeBody struct {
	RuntimeStatus string             `json:"runtimeStatus"`
	HostReady     bool               `json:"hostReady"`
	ActiveActors  []activeActorsBody `json:"activeActors,omitempty"`
	Placement     string             `json:"placement"`
}

// activeActorsBody is the number of active actors of one type. As in Dapr, a count of 0 is left out.
type activeActorsBody struct {
	Type  string `json:"type"`
	Count int    `json:"count,omitempty"`
}

func activeActors(all []api.ActiveActors) []activeActorsBody {
	out := make([]activeActorsBody, len(all))
	for i, a := range all {
		out[i] = activeActorsBody(a)
	}
	return out
}

// extendedVersion is the key of the runtime version in the extended metadata. The field runtimeVersion has the same
// value, but some clients read only this key.
const extendedVersion = "daprRuntimeVersion"

// getMetadata serves GET /v1.0/metadata.
func (s *runtimeRoutes) getMetadata(p *reply, _ *http.Request) error {
	description, set := s.metadata.Describe()
	body, err := json.Marshal(describeNode(s.app, description, set))
	if err != nil {
		return err
	}
	return p.send(http.StatusOK, valueJSON, body)
}

func describeNode(app api.App, d api.Description, set map[string]string) metadataBody {
	out := metadataBody{
		ID:              app.ID,
		RuntimeVersion:  d.RuntimeVersion,
		EnabledFeatures: list(d.Features),
		ActorRuntime: actorRuntimeBody{RuntimeStatus: d.Actors.Status, HostReady: d.Actors.HostReady,
			ActiveActors: activeActors(d.Actors.Active), Placement: d.Actors.Placement},
		Actors:        activeActors(d.Actors.Active),
		Components:    make([]componentBody, len(d.Components)),
		Extended:      map[string]string{extendedVersion: d.RuntimeVersion},
		Subscriptions: subscriptionBodies(d.Subscriptions),
		HTTPEndpoints: names(d.HTTPEndpoints),
		Resiliencies:  names(d.Resiliencies),
		Applications:  make([]applicationBody, len(d.Applications)),
		App: appChannelBody{
			Port: d.Channel.Port, Protocol: d.Channel.Protocol,
			ChannelAddress: d.Channel.Address, MaxConcurrency: d.Channel.MaxConcurrency,
		},
	}
	if h := d.Channel.Health; h != nil {
		out.App.Health = &appHealthBody{Path: h.Path, Interval: h.Interval.String(), Timeout: h.Timeout.String(),
			Threshold: h.Threshold}
	}
	for i, c := range d.Components {
		out.Components[i] = componentBody{Name: c.Name, Type: c.Type, Version: c.Version,
			Capabilities: list(c.Capabilities)}
	}
	out.Workflows.ConnectedWorkers = d.Workers
	for i, a := range d.Applications {
		out.Applications[i] = applicationBody(a)
	}
	if len(d.API.HTTP) > 0 {
		out.API = &apiBody{HTTP: d.API.HTTP, GRPC: list(d.API.GRPC)}
	}
	maps.Copy(out.Extended, set)
	return out
}

func names(in []string) []nameBody {
	out := make([]nameBody, len(in))
	for i, name := range in {
		out[i].Name = name
	}
	return out
}

func list(in []string) []string {
	if in == nil {
		return []string{}
	}
	return in
}

// putMetadata serves PUT /v1.0/metadata/{key}. The body is the text to store.
func (s *runtimeRoutes) putMetadata(p *reply, r *http.Request) error {
	path := restOf(r.URL, metadataPrefix)
	name, err := path.all()
	if err != nil {
		return err
	}
	body, err := s.body(p, r)
	if err != nil {
		return err
	}
	defer s.release(body)
	if err := s.metadata.Set(name, string(body.data)); err != nil {
		return err
	}
	p.empty()
	return nil
}
