package loader

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/state"
)

// LockFactory makes lock stores of one type.
type LockFactory struct {
	// Fields are the metadata fields of this type without those of LockFields.
	Fields []component.Field
	// Open opens a lock store, as StateFactory.Open does. stateStore is the state store whose writes can check the
	// tokens of the locks; empty = none.
	Open func(ctx context.Context, c LockConfig) (store lock.Store, stateStore string, err error)
	// Protects is true if Open depends on the state stores of the node. Reload then opens the lock store again when
	// the state stores change.
	Protects bool
}

// LockConfig is the configuration of a lock store.
type LockConfig struct {
	Name        string // component name
	Namespace   string // namespace of the node; empty = none
	Type        string // in lower case
	Version     string
	Metadata    component.Values // the declared Fields, checked
	StateStores []*state.Instance
	Logger      *slog.Logger // carries the component's name
}

// LockFields returns the metadata fields that every lock store has.
func LockFields() []component.Field {
	return []component.Field{{Name: lock.MetadataKeyPrefix, Default: state.KeyPrefixAppID, Check: checkKeyPrefix}}
}

func (p *opening) lockStore(ctx context.Context, u *unit) error {
	if u.lock.Protects {
		for _, s := range p.set.stores {
			u.digest += fmt.Sprintf(" %q %q", s.Name, s.Type)
		}
	}
	if p.carry(u) {
		return nil
	}
	prefix, err := state.ParseKeyPrefix(u.values.Text(lock.MetadataKeyPrefix))
	if err != nil {
		return u.failed(u.spec.Pos, err)
	}
	store, protects, err := u.lock.Open(ctx, LockConfig{
		Name: u.spec.Name, Namespace: p.options.Namespace, Type: u.typ(), Version: u.spec.Version,
		Metadata: u.values, StateStores: p.set.StateStores(), Logger: u.logger(p.options.Logger),
	})
	if err != nil {
		return u.opened(err)
	}
	i := &lock.Instance{
		Name: u.spec.Name, Type: u.typ(), Version: u.spec.Version, Namespace: p.options.Namespace,
		Scopes: slices.Clone(u.spec.Scopes), KeyPrefix: prefix, StateStore: protects, Store: store,
	}
	if p.options.LockMetrics != nil {
		p.options.LockMetrics.Instrument(i)
	}
	p.set.add(u, &closer{name: i.Name, close: store.Close}, func(s *Set, u *unit) { s.listLocks(u, i) })
	return nil
}

func (s *Set) listLocks(u *unit, i *lock.Instance) {
	s.locks = append(s.locks, i)
	s.statuses = append(s.statuses, statusOf(u.spec, component.Ready, ""))
}

// LockStore returns the lock store with the given component name. Case matters.
func (s *Set) LockStore(name string) (*lock.Instance, bool) {
	for _, i := range s.locks {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

// LockStores returns the lock stores in the order of their opening.
func (s *Set) LockStores() []*lock.Instance { return slices.Clone(s.locks) }
