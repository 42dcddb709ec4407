package loader

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Open reads the files and opens the components. ctx applies only until Open returns.
//
// If a component fails to open, Open closes all components and returns an error, unless the component sets
// ignoreErrors. Such a component is listed as failed in Set.Statuses.
func Open(ctx context.Context, o Options) (*Set, error) {
	plan, err := Read(o)
	if err != nil {
		return nil, err
	}
	plan.report(o.Logger)
	p := &opening{options: o, set: newSet(plan)}
	if err := p.run(ctx, plan); err != nil {
		return nil, joinClose(err, p.set.Close())
	}
	return p.set, nil
}

// OpenStateStore opens the state store with the given name. It also opens all secret stores, because the state store
// may refer to them, but no other components. It returns fault.NotFound if the files declare no such state store for
// this node. The caller must close the set.
func OpenStateStore(ctx context.Context, o Options, name string) (*Set, *state.Instance, error) {
	o.onlyState = name
	set, err := Open(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	if i, found := set.StateStore(name); found {
		return set, i, nil
	}
	err = &fault.Error{Code: fault.NotFound, Op: "loader.OpenStateStore", Key: name,
		Msg:  "the files declare no state store " + name,
		Hint: "check metadata.name, the namespace and the scopes of the component"}
	for _, s := range set.Statuses() {
		if s.Name == name && s.Reason != "" {
			err = fault.New(fault.NotFound, "loader.OpenStateStore", "the component "+name+" is not opened: "+s.Reason)
		}
	}
	return nil, nil, joinClose(err, set.Close())
}

// opening is the state of one Open or Reload.
type opening struct {
	options Options
	set     *Set

	old      *Set    // the set that Reload replaces; nil for Open
	failures []error // errors of components that Reload could not open
}

func (p *opening) run(ctx context.Context, plan *Plan) error {
	if err := p.secretStores(ctx, plan.secrets); err != nil {
		return err
	}
	units, err := p.resolveAll(ctx, plan.state)
	if err != nil {
		return err
	}
	bound, err := p.resolveAll(ctx, append(slices.Clone(plan.bindings), plan.filters...))
	if err != nil {
		return err
	}
	locks, err := p.resolveAll(ctx, plan.locks)
	if err != nil {
		return err
	}
	configurations, err := p.resolveAll(ctx, plan.configurations)
	if err != nil {
		return err
	}
	brokers, err := p.resolveAll(ctx, plan.pubsubs)
	if err != nil {
		return err
	}
	if err := p.options.onlyOneActorStore(units); err != nil {
		return err
	}
	p.keepActors(plan)
	for _, u := range units {
		if err := p.attempt(ctx, u, func(ctx context.Context) error { return p.stateStore(ctx, u) }); err != nil {
			return err
		}
	}
	for _, u := range locks {
		if err := p.attempt(ctx, u, func(ctx context.Context) error { return p.lockStore(ctx, u) }); err != nil {
			return err
		}
	}
	for _, u := range configurations {
		if err := p.attempt(ctx, u, func(ctx context.Context) error {
			return p.configurationStore(ctx,
				u)
		}); err != nil {
			return err
		}
	}
	for _, u := range brokers {
		if err := p.attempt(ctx, u, func(ctx context.Context) error { return p.pubSub(ctx, u) }); err != nil {
			return err
		}
	}
	for _, u := range bound {
		open := p.bindingOf
		if blockOf(u.spec.Type) == blockFilters {
			open = p.filterOf
		}
		if err := p.attempt(ctx, u, func(ctx context.Context) error { return open(ctx, u) }); err != nil {
			return err
		}
	}
	return p.httpEndpoints(ctx, plan.endpoints)
}

// secretStores opens the secret stores. A secret store that refers to another secret store is opened after that store.
// A cycle of such references is an error.
func (p *opening) secretStores(ctx context.Context, pending []*unit) error {
	pending = slices.Clone(pending)
	for len(pending) > 0 {
		next := slices.IndexFunc(pending, func(u *unit) bool { return !waits(u, pending) })
		if next < 0 {
			u := pending[0]
			return u.failed(u.spec.Pos, &fault.Error{Code: fault.Invalid,
				Msg:  "its secrets come from " + u.spec.SecretStore + ", which in turn waits for it",
				Hint: "break the circle of auth.secretStore"})
		}
		u := pending[next]
		pending = slices.Delete(pending, next, next+1)
		err := p.attempt(ctx, u, func(ctx context.Context) error {
			if err := u.resolve(ctx, p.sources()); err != nil {
				return err
			}
			return p.secretStore(ctx, u)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func waits(u *unit, pending []*unit) bool {
	refers := slices.ContainsFunc(u.spec.Metadata, func(i component.Item) bool { return i.Secret != nil })
	return refers && slices.ContainsFunc(pending,
		func(other *unit) bool { return other.spec.Name == u.spec.SecretStore })
}

// resolveAll resolves the references in the metadata of the given components. It returns the components for which this
// succeeded.
//
// Open resolves the references of all state stores before it opens the first store. Only one store may claim the actor
// state, and a reference can decide whether a store claims it.
func (p *opening) resolveAll(ctx context.Context, units []*unit) ([]*unit, error) {
	var out []*unit
	for _, u := range units {
		resolved := false
		err := p.attempt(ctx, u, func(ctx context.Context) error {
			err := u.resolve(ctx, p.sources())
			resolved = err == nil
			return err
		})
		if err != nil {
			return nil, err
		}
		if resolved {
			out = append(out, u)
		}
	}
	return out, nil
}

// attempt runs one step of opening a component, for at most the component's initTimeout. If the step fails, the first
// case that applies decides what happens:
//
//   - ctx has ended: attempt returns the error.
//   - This is a reload, and either the component does not set ignoreErrors or its document is unchanged: attempt
//     records the error and returns nil. The new set keeps the component of the previous set, if there is one.
//   - The component sets ignoreErrors: attempt records the error and returns nil. The new set lacks the component.
//   - Otherwise, attempt returns the error.
func (p *opening) attempt(ctx context.Context, u *unit, step func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, u.spec.InitTimeout)
	defer cancel()
	err := u.late(ctx, bounded, step(bounded))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return err
	case p.old != nil && (!u.spec.IgnoreErrors || p.old.hasUnchanged(u)):
		p.keep(u, err)
		return nil
	case !u.spec.IgnoreErrors:
		return err
	}
	if p.old == nil {
		u.logger(p.options.Logger).Error("component failed; it is not served, because it has ignoreErrors: true",
			"error", fault.Text(err))
	}
	p.set.ignored = append(p.set.ignored, err)
	p.set.statuses = append(p.set.statuses, statusOf(u.spec, component.Failed, fault.Text(err)))
	return nil
}

func (p *opening) secretStore(ctx context.Context, u *unit) error {
	if p.carry(u) {
		return nil
	}
	store, err := u.secrets.Open(ctx, SecretStoreConfig{
		Name: u.spec.Name, Namespace: p.options.Namespace, Type: u.typ(), Version: u.spec.Version,
		Metadata: u.values, Logger: u.logger(p.options.Logger), Env: p.options.Env, Environ: p.options.environ,
	})
	if err != nil {
		return u.opened(err)
	}
	i := &secretstores.Instance{Name: u.spec.Name, Type: u.typ(), Store: store, Scopes: slices.Clone(u.spec.Scopes)}
	if s := u.scope; s != nil {
		i.Scope = secretstores.NewScope(store, s.DenyDefault, s.Allowed, s.Denied)
	}
	if p.options.SecretMetrics != nil {
		i.Store = p.options.SecretMetrics.Instrument(store, i.Name)
	}
	p.set.addSecretStore(u, i)
	return nil
}

func (p *opening) stateStore(ctx context.Context, u *unit) error {
	if err := p.movesActors(u); err != nil {
		p.keep(u, err)
		return nil
	}
	if p.carry(u) {
		return nil
	}
	set, err := settings(u.values)
	if err != nil {
		return u.failed(u.spec.Pos, err)
	}
	set.ActorStore = u.claimsActors()
	ring, err := encryption(u.values)
	if err != nil {
		return u.failed(u.spec.Pos, err)
	}
	largest := max(state.LargestValue, p.options.MaxBody, set.MaxValueSize)
	if ring != nil {
		largest *= 2 // an encrypted value is stored as base64
	}
	store, err := u.state.Open(ctx, StateConfig{
		Name: u.spec.Name, Namespace: p.options.Namespace, Type: u.typ(), Version: u.spec.Version,
		Metadata: u.values, Settings: set, Logger: u.logger(p.options.Logger),
		LargestValue: largest,
	})
	if err != nil {
		return u.opened(err)
	}
	if set.ActorStore && state.AbilitiesOf(store).Transactor == nil {
		err := &fault.Error{Code: fault.Invalid, Op: "loader.Open",
			Msg: "it says " + state.MetadataActorStateStore +
				`: "true", but this type has no transactions, which actor state needs`,
			Hint: "choose a store with transactions, such as state.raft"}
		return joinClose(u.failed(u.spec.Pos, err), store.Close())
	}
	if set.Outbox != nil && state.AbilitiesOf(store).Transactor == nil {
		err := &fault.Error{Code: fault.Invalid, Op: "loader.Open",
			Msg:  "it has an outbox, but this type has no transactions, which alone publish events",
			Hint: "choose a store with transactions, such as state.raft, or remove " + state.MetadataOutboxPubSub}
		return joinClose(u.failed(u.spec.Pos, err), store.Close())
	}
	closing := store.Close
	store, monitor := state.Monitored(store, state.MonitorOptions{Name: u.spec.Name,
		Logger: u.logger(p.options.Logger), Metrics: p.options.Metrics})
	if monitor != nil {
		end := closing
		closing = func() error { monitor.Close(); return end() }
	}
	if ring != nil {
		store = state.Encrypted(store, ring)
	}
	instance := p.instance(u, set, store)
	instance.Monitor = monitor
	p.set.addStateStore(u, instance, closing)
	return nil
}

// instance wraps an opened store with its settings and metrics.
func (p *opening) instance(u *unit, set state.Settings, store state.Store) *state.Instance {
	level := set.Consistency(state.DefaultConsistency)
	wrapped := state.WithSettings(store, set)
	if p.options.Metrics != nil {
		wrapped = p.options.Metrics.Instrument(wrapped, u.spec.Name, level)
	}
	features := slices.Clone(state.FeaturesOf(store))
	if set.ActorStore && !u.state.Fenced {
		features = append(features, state.FeatureActorUnfenced)
		if p.options.onlyState == "" { // OpenStateStore opens a store that serves no actors
			u.logger(p.options.Logger).Info("the actor state is in a store that does not check the owner of an actor: "+
				"a paused owner may overwrite what the next one has written", "hint", "use a store of type state.raft")
		}
	}
	slices.Sort(features)
	return &state.Instance{
		Name: u.spec.Name, Type: u.typ(), Version: u.spec.Version, Namespace: p.options.Namespace,
		Store: wrapped, KeyPrefix: set.KeyPrefix, DefaultConsistency: level, DefaultTTL: set.DefaultTTL,
		MaxValueSize: set.MaxValueSize, ActorStore: set.ActorStore, Features: features,
		Scopes: slices.Clone(u.spec.Scopes), Outbox: set.Outbox, Effects: u.state.Effects,
	}
}

func (p *opening) sources() component.Sources {
	return component.Sources{Placeholders: p.options.placeholders(), Env: p.options.Env, Secret: p.secret}
}

// secret resolves a secretKeyRef. Its errors name the secret store, the secret or the key that is missing. They never
// contain a secret value.
func (p *opening) secret(ctx context.Context, name string, ref component.SecretRef) (string, error) {
	store, ok := p.set.SecretStore(name)
	if !ok {
		return "", p.noSecretStore(name)
	}
	values, err := store.Store.Get(ctx, ref.Name, nil)
	switch {
	case fault.Is(err, fault.NotFound):
		return "", missing(fmt.Sprintf("the secret store %s has no secret %q", name, ref.Name), "")
	case err != nil:
		return "", fault.Wrap(err, "loader.Open",
			fmt.Sprintf("reading the secret %q from the secret store %s", ref.Name, name))
	}
	value, ok := values[ref.Key]
	if !ok {
		return "", missing(fmt.Sprintf("the secret %q of the secret store %s has no key %q", ref.Name, name, ref.Key),
			"set secretKeyRef.key to one that it has")
	}
	return value, nil
}

func (p *opening) noSecretStore(name string) error {
	for _, s := range p.set.statuses {
		if s.Name == name && s.State != component.Ready && blockOf(s.Type) == blockSecrets {
			return missing(fmt.Sprintf("the secret store %s is not available: %s", name, s.Reason), "")
		}
	}
	return undeclaredSecretStore(name, p.set.secretStoreNames())
}

// undeclaredSecretStore returns the error for a reference to a secret store that no file declares. The hint of the
// error lists the declared stores, whose names the caller passes.
func undeclaredSecretStore(name string, names []string) error {
	hint := "declare a secret store of that name, or correct auth.secretStore"
	if len(names) > 0 {
		hint = "there is " + strings.Join(names, ", ")
	}
	return missing("there is no secret store "+name, hint)
}

func missing(msg, hint string) error {
	return &fault.Error{Code: fault.NotFound, Op: "loader.Open", Msg: msg, Hint: hint}
}
