package api

import (
	"strconv"
	"sync"
	"time"
	"unicode/utf8"
)

// NodeInfo describes the node. Implementations are safe for concurrent use.
type NodeInfo interface {
	// Describe returns the current description of the node for the application. The caller must not change the slices.
	Describe() Description
}

// Description is the answer of GET /v1.0/metadata, except the values the application set.
type Description struct {
	RuntimeVersion string
	Features       []string // optional features that are switched on
	Components     []ComponentInfo
	HTTPEndpoints  []string // names
	Resiliencies   []string // names of the Resiliency resources in effect
	Channel        AppChannel
	Actors         ActorRuntime
	Workers        int               // number of open streams of workflow workers
	Applications   []ApplicationInfo // applications of the whole cluster, by id and namespace
	Subscriptions  []SubscriptionInfo
	API            APIAddresses
}

// APIAddresses are the addresses of the application's API, as host:port. They are empty until the start is complete.
type APIAddresses struct {
	HTTP []string
	GRPC []string // empty = gRPC is not served
}

// ApplicationInfo is one application of the cluster.
type ApplicationInfo struct {
	ID        string
	Namespace string // empty = the default one
	Instances int    // instances on nodes that are alive
	Callable  int    // instances that are healthy and have a port
}

// ComponentInfo is one loaded component.
type ComponentInfo struct {
	Name, Type, Version string
	Capabilities        []string // such as ETAG, TRANSACTIONAL, TTL
}

// SubscriptionInfo describes one subscription of the application. The subscription may still be waiting for its
// component or for the application.
type SubscriptionInfo struct {
	PubSub, Topic string
	Metadata      map[string]string
	Rules         []SubscriptionRule // in the order of evaluation; the default rule is last and has no Match
	DeadLetter    string             // topic; empty = none
	Kind          string             // DECLARATIVE, PROGRAMMATIC or STREAMING
}

// SubscriptionRule sends matching messages to a path of the application.
type SubscriptionRule struct {
	Match, Path string
}

// AppChannel describes how the runtime calls the application. Port is 0 if the runtime does not call the application.
// Health is nil if the runtime does not probe the health of the application.
type AppChannel struct {
	Port           int
	Protocol       string // http, https, h2c, grpc, grpcs
	Address        string
	MaxConcurrency int // 0 = no cap
	Health         *AppHealth
}

// AppHealth describes how the runtime probes the application.
type AppHealth struct {
	Path              string // path of the probe; only for an HTTP application
	Interval, Timeout time.Duration
	Threshold         int // consecutive failures after which the application is unhealthy
}

// ActorRuntime is the status of the actor building block.
type ActorRuntime struct {
	Status    string // INITIALIZING, DISABLED or RUNNING
	HostReady bool
	Placement string // whether actors can be placed, or why not
	Active    []ActiveActors
}

// ActiveActors is how many actors of a type are active on the node.
type ActiveActors struct {
	Type  string
	Count int
}

// Metadata describes the runtime to one application. It also keeps values that are set with the metadata API, by the
// application or by the tool that started it. These values exist only in memory. Their number and size are limited.
type Metadata struct {
	app    App
	node   NodeInfo
	limits Limits

	mu       sync.Mutex
	extended map[string]string
}

// NewMetadata returns the metadata service of app.
func NewMetadata(app App, node NodeInfo, limits Limits) *Metadata {
	return &Metadata{app: app, node: node, limits: limits.WithDefaults(), extended: map[string]string{}}
}

// App returns the application to which m describes the runtime.
func (m *Metadata) App() App { return m.app }

// Describe returns the description of the node, and a copy of the values that were set.
func (m *Metadata) Describe() (Description, map[string]string) {
	return m.node.Describe(), m.copyExtended()
}

func (m *Metadata) copyExtended() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[string]string, len(m.extended))
	for name, value := range m.extended {
		out[name] = value
	}
	return out
}

// Set stores value under name. It replaces an earlier value with the same name.
func (m *Metadata) Set(name, value string) error {
	switch limit := m.limits.ExtendedSize; {
	case name == "":
		return malformed("the name of a metadata value is empty")
	case len(name) > limit:
		return Exceeded("the name of a metadata value is too long, in bytes", len(name), limit)
	case len(value) > limit:
		return Exceeded("the metadata value "+Shorten(name)+" is too long, in bytes", len(value), limit)
	case !utf8.ValidString(name), !utf8.ValidString(value):
		return malformed("the metadata value " + strconv.Quote(Shorten(name)) + " or its name is not valid UTF-8 text")
	}
	return orNil(m.put(name, value))
}

func (m *Metadata) put(name, value string) *Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.extended[name]; !known && len(m.extended) >= m.limits.ExtendedValues {
		return Exceeded("too many metadata values", len(m.extended)+1, m.limits.ExtendedValues)
	}
	m.extended[name] = value
	return nil
}
