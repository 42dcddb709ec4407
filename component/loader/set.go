package loader

import (
	"slices"
	"sync"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/middleware"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Set holds the opened components of a node. It does not change until Close, and is safe for concurrent use.
type Set struct {
	documents      map[component.Kind][]component.Document
	statuses       []component.Status
	stores         []*state.Instance
	secrets        []*secretstores.Instance
	bindings       []*bindings.Instance
	locks          []*lock.Instance
	configurations []*configuration.Instance
	pubsubs        []*pubsub.Instance
	filters        []*middleware.Instance
	endpoints      []*Endpoint
	subscriptions  []component.Subscription
	entries        map[entryKey]*entry
	closers        []*closer   // in the order of opening
	ignored        []error     // errors of components with ignoreErrors
	actors         *actorStore // has or had the actor state in this set or a previous one; nil = none

	once     sync.Once
	closeErr error
}

// closer closes one component, once.
type closer struct {
	name  string
	close func() error
	once  sync.Once
	err   error
}

// Close closes the component. Later calls return the same error.
func (c *closer) Close() error {
	c.once.Do(func() {
		if err := c.close(); err != nil {
			c.err = fault.Wrap(err, "loader.Close", "closing component "+c.name)
		}
	})
	return c.err
}

// entryKey identifies a component of a node.
type entryKey struct{ block, name string }

// entry is one open component, as Reload needs it.
type entry struct {
	digest   string
	spec     *component.Spec // content of the last document with this digest
	volatile bool            // loses what it holds when it is closed
	closing  *closer
	list     func(*Set, *unit) // adds the component to the lists of another set
}

// actorStore identifies the store with the actor state.
type actorStore struct{ name, typ, version string }

// Ignored returns the errors of components with ignoreErrors that could not be opened.
func (s *Set) Ignored() []error { return slices.Clone(s.ignored) }

// add adds an open component to the set, and calls list to add the component to the lists of the set. If a reload keeps
// the component, list is called again with the new set.
func (s *Set) add(u *unit, closing *closer, list func(*Set, *unit)) {
	s.entries[u.key()] = &entry{u.digest, u.spec, u.volatile(), closing, list}
	s.closers = append(s.closers, closing)
	list(s, u)
}

func newSet(plan *Plan) *Set {
	return &Set{documents: plan.documents, subscriptions: plan.subscriptions, statuses: slices.Clone(plan.rejected),
		entries: map[entryKey]*entry{}}
}

// StateStore returns the state store with the given component name. Case matters.
func (s *Set) StateStore(name string) (*state.Instance, bool) {
	for _, i := range s.stores {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

// StateStores returns the state stores in the order in which they were declared.
func (s *Set) StateStores() []*state.Instance { return slices.Clone(s.stores) }

// ActorStore returns the store with the actor state, if there is one.
func (s *Set) ActorStore() (*state.Instance, bool) {
	for _, i := range s.stores {
		if i.ActorStore {
			return i, true
		}
	}
	return nil, false
}

// SecretStore returns the secret store with the given component name. Case matters.
func (s *Set) SecretStore(name string) (*secretstores.Instance, bool) {
	for _, i := range s.secrets {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

// SecretStores returns the secret stores in the order of their opening.
func (s *Set) SecretStores() []*secretstores.Instance { return slices.Clone(s.secrets) }

// Statuses returns the statuses of all components: first the opened components in the order of opening, then those that
// failed, and then those that are not for this node.
func (s *Set) Statuses() []component.Status {
	out := slices.Clone(s.statuses)
	rank := func(c component.Status) int {
		return slices.Index([]component.State{component.Ready, component.Failed, component.Ignored}, c.State)
	}
	slices.SortStableFunc(out, func(a, b component.Status) int { return rank(a) - rank(b) })
	return out
}

// Documents returns the documents of a kind that apply to this node, in the order of the files. Components, HTTP
// endpoints and subscriptions have been checked completely. In a Configuration, only the header and the secret scopes
// have been checked, and in a document of another kind only the header.
func (s *Set) Documents(kind component.Kind) []component.Document {
	return slices.Clone(s.documents[kind])
}

// Close closes all components in the reverse order of opening, and returns their errors as one error. Later calls do
// nothing and return the same error.
func (s *Set) Close() error {
	s.once.Do(func() {
		var errs []error
		for _, c := range slices.Backward(s.closers) {
			if err := c.Close(); err != nil {
				errs = append(errs, err)
			}
		}
		s.closeErr = join("loader.Close", errs)
	})
	return s.closeErr
}

func (s *Set) addStateStore(u *unit, i *state.Instance, closing func() error) {
	if i.ActorStore {
		s.actors = &actorStore{i.Name, i.Type, u.spec.Version}
	}
	s.add(u, &closer{name: i.Name, close: closing}, func(s *Set, u *unit) { s.listStateStore(u, i) })
}

func (s *Set) listStateStore(u *unit, i *state.Instance) {
	s.stores = append(s.stores, i)
	status := statusOf(u.spec, component.Ready, "")
	for _, f := range i.Features {
		status.Capabilities = append(status.Capabilities, string(f))
	}
	s.statuses = append(s.statuses, status)
}

func (s *Set) addSecretStore(u *unit, i *secretstores.Instance) {
	s.add(u, &closer{name: i.Name, close: i.Store.Close}, func(s *Set, u *unit) { s.listSecretStore(u, i) })
}

func (s *Set) listSecretStore(u *unit, i *secretstores.Instance) {
	s.secrets = append(s.secrets, i)
	status := statusOf(u.spec, component.Ready, "")
	if f, ok := i.Store.(secretstores.Featurer); ok {
		for _, feature := range f.Features() {
			status.Capabilities = append(status.Capabilities, string(feature))
		}
		slices.Sort(status.Capabilities)
	}
	s.statuses = append(s.statuses, status)
}

func (s *Set) secretStoreNames() []string {
	var out []string
	for _, i := range s.secrets {
		out = append(out, i.Name)
	}
	return out
}
