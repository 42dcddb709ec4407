package components

import (
	"context"
	"strings"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
)

// TypeLockRaft is the component type of the replicated locks.
const TypeLockRaft = "lock.raft"

// Metadata names of lock.raft.
const (
	lockStateStore = "stateStore" // the state store whose writes can check tokens
	lockReentrant  = "reentrant"  // TryLock by the owner renews the lock
)

func lockFields() []component.Field {
	return []component.Field{{Name: lockStateStore}, {Name: lockReentrant, Kind: component.Bool}}
}

// replicatedLocks returns the factory of lock.raft.
func replicatedLocks(host *raftfsm.Host) loader.LockFactory {
	return loader.LockFactory{Fields: lockFields(), Protects: true, Open: func(_ context.Context,
		c loader.LockConfig) (lock.Store, string, error) {
		protects, err := protectedStore(&c)
		if err != nil {
			return nil, "", err
		}
		space := protects
		if space == "" { // the locks protect no writes, and have a space of their own
			space = c.Name
		}
		return host.Store(c.Namespace, space).Locks(c.Name, c.Metadata.Bool(lockReentrant)), protects, nil
	}}
}

// protectedStore returns the name of the state store that the locks of a component protect. Usually the component names
// this store. If the named store is not of type state.raft, protectedStore returns fault.Invalid.
//
// If the component names no store, protectedStore returns the only store of type state.raft, or "" if there is none or
// more than one.
func protectedStore(c *loader.LockConfig) (string, error) {
	wanted := c.Metadata.Text(lockStateStore)
	var replicated []string
	for _, s := range c.StateStores {
		if s.Type == TypeStateRaft {
			replicated = append(replicated, s.Name)
		}
		if s.Name == wanted && s.Type == TypeStateRaft {
			return wanted, nil
		}
	}
	switch {
	case wanted != "":
		return "", &fault.Error{Code: fault.Invalid, Op: "components.Open", Key: wanted,
			Msg:  lockStateStore + " names " + wanted + ", which is no state store of type " + TypeStateRaft,
			Hint: "name one of: " + strings.Join(replicated, ", ")}
	case len(replicated) == 1:
		return replicated[0], nil
	}
	return "", nil
}

// LockStore returns the lock store with the given name. It returns false if there is none.
func (c *Components) LockStore(name string) (*lock.Instance, bool) {
	if s := c.set.Load(); s != nil {
		return s.LockStore(name)
	}
	return nil, false
}

// LockStores returns all lock stores.
func (c *Components) LockStores() []*lock.Instance {
	if s := c.set.Load(); s != nil {
		return s.LockStores()
	}
	return nil
}
