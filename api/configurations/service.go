package configurations

import (
	"context"
	"slices"
	"strconv"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
)

// Stores are the opened configuration stores. The set of stores changes while components are being loaded.
// Implementations are safe for concurrent use.
type Stores interface {
	// ConfigurationStore returns the store with the given component name.
	ConfigurationStore(name string) (*configuration.Instance, bool)
	// ConfigurationStores returns all stores.
	ConfigurationStores() []*configuration.Instance
	// Loaded reports whether all components have been opened.
	Loaded() bool
}

// Policies are the resiliency policies of configuration stores. Implementations are safe for concurrent use.
type Policies interface {
	// Outbound returns the policy for operations of a store; nil = none.
	Outbound(store string) *resiliency.Policy
	// Inbound returns the policy for calls of the application about changes; nil = none.
	Inbound(store string) *resiliency.Policy
}

// Metadata keys that this service interprets in requests. It passes all other metadata on to the store.
const (
	metadataConsistency = "consistency" // "strong" = linearizable
	metadataInitial     = "initial"     // "true" = a subscription begins with the present items
)

// Service serves the configuration API of one application. It is safe for concurrent use. All errors are *api.Error.
// Close ends the subscriptions of the service.
type Service struct {
	options       Options
	subscriptions subscriptions
}

// New returns the configuration service of an application.
func New(o Options) *Service {
	c := &Service{options: o}
	c.subscriptions.init()
	return c
}

// Request selects the items to read or to subscribe to.
type Request struct {
	Store    string
	Keys     []string // empty = all
	Metadata map[string]string
	Session  string // token of an earlier answer; empty = none
	Trace    string // trace id of the request; empty = none
}

// Get reads items. Keys that do not exist are left out.
func (c *Service) Get(ctx context.Context, r Request) (configuration.Found, error) {
	inst, failure := c.store(r.Store)
	if failure != nil {
		return configuration.Found{}, failure
	}
	if failure := checkKeys(r.Keys); failure != nil {
		return configuration.Found{}, failure
	}
	request := configuration.GetRequest{Keys: r.Keys, Metadata: r.Metadata,
		Session: c.options.Sessions.Begin(c.options.Callee, r.Trace, r.Session)}
	switch r.Metadata[metadataConsistency] {
	case "strong":
		request.Strong = true
	case "", "eventual":
	default:
		return configuration.Found{}, api.MalformedRequest("metadata.consistency must be strong or eventual")
	}
	var found configuration.Found
	err := c.options.Policies.Outbound(inst.Name).Repeat(ctx, func(ctx context.Context) (err error) {
		found, err = inst.Store.Get(ctx, request)
		return err
	})
	if err != nil {
		return configuration.Found{}, failed(api.CodeConfigurationGet, "failed to get items of", inst.Name, err)
	}
	// The answer has no level, so it cannot report a lost write. Extend keeps the positions for a read that can.
	answered := c.options.Sessions.Extend(request.Session, found.Session)
	found.Session = c.options.Sessions.End(c.options.Callee, r.Trace, r.Session, request.Session, answered)
	return found, nil
}

// Change is a change of one item in a request.
type Change struct {
	Key      string            `json:"key"`
	Value    string            `json:"value,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Version  string            `json:"version,omitempty"` // required current version; "0" = the key must not exist
	Delete   bool              `json:"delete,omitempty"`
}

// Changes converts the changes of a request to changes for a store.
func Changes(list []Change) []configuration.Change {
	out := make([]configuration.Change, len(list))
	for i := range list {
		c := &list[i]
		out[i] = configuration.Change{Delete: c.Delete, Item: configuration.Item{Key: c.Key, Value: c.Value,
			Version: c.Version, Metadata: c.Metadata}}
	}
	return out
}

// WriteRequest changes items, all or none.
type WriteRequest struct {
	Store   string
	Changes []Change
	Session string
	Trace   string
}

// Write changes items of a configuration store, all or none. The store must permit the application to write. The result
// session is a session token, or empty if the store does not use session tokens.
func (c *Service) Write(ctx context.Context, w WriteRequest) (session string, err error) {
	inst, failure := c.store(w.Store)
	if failure != nil {
		return "", failure
	}
	writer, ok := inst.Store.(configuration.Writer)
	switch {
	case !ok:
		return "", &api.Error{Kind: api.Unsupported, Code: api.CodeConfigurationSave,
			Details: api.Details{Reason: api.ReasonUnsupported},
			Message: "configuration store " + inst.Name + " of type " + inst.Type + " cannot be written here"}
	case !inst.WritableBy(c.options.App.ID):
		return "", &api.Error{Kind: api.Denied, Code: api.CodePermissionDenied,
			Details: api.Details{Reason: api.ReasonDenied},
			Message: "application " + c.options.App.ID + " may not write configuration store " + inst.Name +
				" (list it in " + configuration.MetadataWriters + " of the component, or use quorate configuration " +
				"set)"}
	}
	request := configuration.WriteRequest{Changes: Changes(w.Changes),
		Session: c.options.Sessions.Begin(c.options.Callee, w.Trace, w.Session)}
	written, err := writer.Write(ctx, request)
	if err != nil {
		return "", notSaved(inst.Name, err)
	}
	return c.options.Sessions.End(c.options.Callee, w.Trace, w.Session, request.Session, written.Session), nil
}

func notSaved(store string, err error) *api.Error {
	e := failed(api.CodeConfigurationSave, "failed to save items of", store, err)
	switch fault.CodeOf(err) {
	case fault.Conflict:
		e.Kind = api.Conflict
		e.Details.Metadata = api.Attributes("store", store, "key", fault.KeyOf(err))
	case fault.Invalid, fault.TooLarge:
		e.Kind, e.Code = api.Malformed, api.CodeMalformed
	}
	return e
}

func checkKeys(keys []string) error {
	if len(keys) > configuration.MaxItems {
		return api.Exceeded("too many keys", len(keys), configuration.MaxItems)
	}
	i := slices.IndexFunc(keys, func(k string) bool { return configuration.CheckKey(k) != nil })
	if i < 0 {
		return nil
	}
	return api.InvalidOption("key "+strconv.Itoa(i+1)+": ", configuration.CheckKey(keys[i]))
}

// store returns the configuration store of a request.
func (c *Service) store(name string) (*configuration.Instance, *api.Error) {
	stores, app := c.options.Stores, c.options.App.ID
	visible := slices.ContainsFunc(stores.ConfigurationStores(),
		func(i *configuration.Instance) bool { return i.VisibleTo(app) })
	inst, found := stores.ConfigurationStore(name)
	switch {
	case !stores.Loaded():
		return nil, &api.Error{Kind: api.Unavailable, Code: api.CodeConfigurationStoreNotConfigured,
			Message: "components are being loaded (wait for /v1.0/healthz/outbound)",
			Details: api.Details{Reason: api.ReasonStarting}}
	case !visible:
		return nil, &api.Error{Kind: api.NotConfigured, Code: api.CodeConfigurationStoreNotConfigured,
			Message: "configuration stores not configured", Details: api.Details{Reason: api.ReasonNotConfigured}}
	case !found || !inst.VisibleTo(app):
		return nil, &api.Error{Kind: api.Missing, Code: api.CodeConfigurationStoreNotFound,
			Message: "configuration store " + api.ShortenName(name) + " not found",
			Details: api.Details{Reason: api.ReasonNotFound, Metadata: api.Attributes("store", api.Shorten(name))}}
	}
	return inst, nil
}

// failed returns the public error for a failed operation on a store. As in Dapr, the code depends on the operation and
// not on the cause of the failure. The message begins with the given sentence.
func failed(code, sentence, store string, err error) *api.Error {
	kind, reason := api.StoreFailure(err)
	if kind != api.Indeterminate && kind != api.Unavailable && kind != api.Timeout {
		kind = api.Failed
	}
	return &api.Error{Kind: kind, Code: code,
		Message: sentence + " configuration store " + store + ": " + api.StoreText(err),
		Details: api.Details{Reason: reason, Metadata: api.Attributes("store", store)}, Cause: err}
}

// ChangesOf converts items of a store to changes. The item of a deleted key becomes a deletion.
func ChangesOf(items []configuration.Item) []Change {
	out := make([]Change, len(items))
	for i := range items {
		it := &items[i]
		out[i] = Change{Key: it.Key, Value: it.Value, Version: it.Version, Metadata: it.Metadata,
			Delete: it.Deleted()}
	}
	return out
}
