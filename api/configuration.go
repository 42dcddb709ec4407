package api

import (
	"context"
	"slices"
	"strconv"

	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
)

// ConfigurationStores returns the opened configuration stores. The set changes while components are being loaded.
// Implementations are safe for concurrent use.
type ConfigurationStores interface {
	// ConfigurationStore returns the store with the given component name.
	ConfigurationStore(name string) (*configuration.Instance, bool)
	// ConfigurationStores returns all stores.
	ConfigurationStores() []*configuration.Instance
	// Loaded reports whether all components have been opened.
	Loaded() bool
}

// ConfigurationPolicies are the resiliency policies of configuration stores. Implementations are safe for concurrent
// use.
type ConfigurationPolicies interface {
	// Outbound returns the policy for operations of a store; nil = none.
	Outbound(store string) *resiliency.Policy
	// Inbound returns the policy for calls of the application about changes; nil = none.
	Inbound(store string) *resiliency.Policy
}

// Metadata keys of requests that this service interprets. It passes all other metadata on to the store.
const (
	metadataConsistency = "consistency" // "strong" = linearizable
	metadataInitial     = "initial"     // "true" = a subscription begins with the present items
)

// Configurations serves the configuration API of one application. It is safe for concurrent use. All errors are
// *Error. Close ends its subscriptions.
type Configurations struct {
	options       ConfigurationOptions
	subscriptions subscriptions
}

// NewConfigurations returns the configuration service of an application.
func NewConfigurations(o ConfigurationOptions) *Configurations {
	c := &Configurations{options: o}
	c.subscriptions.init()
	return c
}

// ConfigurationRequest reads items.
type ConfigurationRequest struct {
	Store    string
	Keys     []string // empty = all
	Metadata map[string]string
	Session  string // token of an earlier answer; empty = none
	Trace    string // trace id of the request; empty = none
}

// Get reads items. Keys that do not exist are left out.
func (c *Configurations) Get(ctx context.Context, r ConfigurationRequest) (configuration.Found, error) {
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
		return configuration.Found{}, malformed("metadata.consistency must be strong or eventual")
	}
	var found configuration.Found
	err := c.options.Policies.Outbound(inst.Name).Repeat(ctx, func(ctx context.Context) (err error) {
		found, err = inst.Store.Get(ctx, request)
		return err
	})
	if err != nil {
		return configuration.Found{}, configurationFailed(CodeConfigurationGet, "failed to get items of", inst.Name,
			err)
	}
	c.options.Sessions.End(c.options.Callee, r.Trace, request.Session, found.Session)
	return found, nil
}

// ConfigurationChange is a change of one item in a request.
type ConfigurationChange struct {
	Key      string            `json:"key"`
	Value    string            `json:"value,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Version  string            `json:"version,omitempty"` // only if it is current; "0" = only if the key is absent
	Delete   bool              `json:"delete,omitempty"`
}

// Changes converts the changes of a request.
func Changes(list []ConfigurationChange) []configuration.Change {
	out := make([]configuration.Change, len(list))
	for i := range list {
		c := &list[i]
		out[i] = configuration.Change{Delete: c.Delete, Item: configuration.Item{Key: c.Key, Value: c.Value,
			Version: c.Version, Metadata: c.Metadata}}
	}
	return out
}

// ConfigurationWrite changes items, all or none.
type ConfigurationWrite struct {
	Store   string
	Changes []ConfigurationChange
	Session string
	Trace   string
}

// Write changes items of a configuration store, if the store permits the application to write. session is a session
// token, or empty if the store has none.
func (c *Configurations) Write(ctx context.Context, w ConfigurationWrite) (session string, err error) {
	inst, failure := c.store(w.Store)
	if failure != nil {
		return "", failure
	}
	writer, ok := inst.Store.(configuration.Writer)
	switch {
	case !ok:
		return "", &Error{Kind: Unsupported, Code: CodeConfigurationSave, Details: Details{Reason: ReasonUnsupported},
			Message: "configuration store " + inst.Name + " of type " + inst.Type + " cannot be written here"}
	case !inst.WritableBy(c.options.App.ID):
		return "", &Error{Kind: Denied, Code: CodePermissionDenied, Details: Details{Reason: ReasonDenied},
			Message: "application " + c.options.App.ID + " may not write configuration store " + inst.Name +
				" (list it in " + configuration.MetadataWriters + " of the component, or use quorate configuration " +
				"set)"}
	}
	request := configuration.WriteRequest{Changes: Changes(w.Changes),
		Session: c.options.Sessions.Begin(c.options.Callee, w.Trace, w.Session)}
	written, err := writer.Write(ctx, request)
	if err != nil {
		return "", configurationNotSaved(inst.Name, err)
	}
	c.options.Sessions.End(c.options.Callee, w.Trace, request.Session, written.Session)
	return written.Session, nil
}

func configurationNotSaved(store string, err error) *Error {
	e := configurationFailed(CodeConfigurationSave, "failed to save items of", store, err)
	switch fault.CodeOf(err) {
	case fault.Conflict:
		e.Kind = Conflict
		e.Details.Metadata = Attributes("store", store, "key", fault.KeyOf(err))
	case fault.Invalid, fault.TooLarge:
		e.Kind, e.Code = Malformed, CodeMalformed
	}
	return e
}

func checkKeys(keys []string) *Error {
	if len(keys) > configuration.MaxItems {
		return exceeded("too many keys", len(keys), configuration.MaxItems)
	}
	i := slices.IndexFunc(keys, func(k string) bool { return configuration.CheckKey(k) != nil })
	if i < 0 {
		return nil
	}
	return invalid("key "+strconv.Itoa(i+1)+": ", configuration.CheckKey(keys[i]))
}

// store returns the configuration store of a request.
func (c *Configurations) store(name string) (*configuration.Instance, *Error) {
	stores, app := c.options.Stores, c.options.App.ID
	visible := slices.ContainsFunc(stores.ConfigurationStores(),
		func(i *configuration.Instance) bool { return i.VisibleTo(app) })
	inst, found := stores.ConfigurationStore(name)
	switch {
	case !stores.Loaded():
		return nil, &Error{Kind: Unavailable, Code: CodeConfigurationStoreNotConfigured,
			Message: "components are being loaded (wait for /v1.0/healthz/outbound)",
			Details: Details{Reason: ReasonStarting}}
	case !visible:
		return nil, &Error{Kind: NotConfigured, Code: CodeConfigurationStoreNotConfigured,
			Message: "configuration stores not configured", Details: Details{Reason: ReasonNotConfigured}}
	case !found || !inst.VisibleTo(app):
		return nil, &Error{Kind: Missing, Code: CodeConfigurationStoreNotFound,
			Message: "configuration store " + ShortenName(name) + " not found",
			Details: Details{Reason: ReasonNotFound, Metadata: Attributes("store", Shorten(name))}}
	}
	return inst, nil
}

// configurationFailed returns the public error for a failed operation on a store. As in Dapr, all failures of an
// operation have the same code.
func configurationFailed(code, sentence, store string, err error) *Error {
	v := row{conflict: Failed, writes: code == CodeConfigurationSave}.verdict(fault.CodeOf(err))
	kind := Failed
	if v.kind == Indeterminate || v.kind == Unavailable || v.kind == Timeout {
		kind = v.kind
	}
	return &Error{Kind: kind, Code: code,
		Message: sentence + " configuration store " + store + ": " + storeText(err),
		Details: Details{Reason: v.reason, Metadata: Attributes("store", store)}, Cause: err}
}

// ChangesOf converts items of a store. An item of a deleted key becomes a deletion.
func ChangesOf(items []configuration.Item) []ConfigurationChange {
	out := make([]ConfigurationChange, len(items))
	for i := range items {
		it := &items[i]
		out[i] = ConfigurationChange{Key: it.Key, Value: it.Value, Version: it.Version, Metadata: it.Metadata,
			Delete: it.Deleted()}
	}
	return out
}
