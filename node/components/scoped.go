package components

import "github.com/quorate/quorate/component/state"

// Scoped provides the components of a node to one application. It hides a state store if the scopes of the store
// exclude the application. It does not check the scopes of other components.
type Scoped struct {
	*Components
	app string // its id
}

// For returns the components that the application with the id app can use.
func (c *Components) For(app string) Scoped { return Scoped{c, app} }

// StateStore returns the state store with the given name. It returns false if there is none that the application can
// use.
func (s Scoped) StateStore(name string) (*state.Instance, bool) {
	return s.visible(s.Components.StateStore(name))
}

// ActorStore returns the actor state store. It returns false if there is none that the application can use.
func (s Scoped) ActorStore() (*state.Instance, bool) { return s.visible(s.Components.ActorStore()) }

func (s Scoped) visible(i *state.Instance, ok bool) (*state.Instance, bool) {
	if !ok || !i.VisibleTo(s.app) {
		return nil, false
	}
	return i, true
}

// StateStores returns all state stores that the application can use.
func (s Scoped) StateStores() []*state.Instance {
	var out []*state.Instance
	for _, i := range s.Components.StateStores() {
		if i.VisibleTo(s.app) {
			out = append(out, i)
		}
	}
	return out
}
