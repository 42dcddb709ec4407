package kv

import (
	"sync"
	"sync/atomic"
)

// maxChanges is the maximum number of written keys that are recorded for each of DueStore and TopicStore. If there are
// more, the machine drops the recorded keys, and any key of the store counts as changed.
const maxChanges = 20_000

// storeChanges records which keys of one store have changed. The leader of the group uses it to update its own index
// of the store.
type storeChanges struct {
	limit  int         // maximum number of keys; 0 = no limit
	recent atomic.Bool // a record has changed since the last call of happened

	mu   sync.Mutex
	on   bool // changed keys are recorded
	keys []string
	all  bool // any key may have changed, also keys that are not in keys
}

// noteStored records a written key of a store whose changes are collected.
func (w *writer) noteStored(k rowKey) {
	switch k.store {
	case LockStore:
		w.locks = append(w.locks, k.key)
	case DueStore:
		w.dues = append(w.dues, k.key)
	case TopicStore:
		w.topics = append(w.topics, k.key)
	}
}

// noteRemoved records a removed key of a store whose changes are collected.
func (w *writer) noteRemoved(k rowKey) {
	if k.store == LockStore {
		w.locks = append(w.locks, k.key)
	}
}

// publishChanges passes the keys that the current Apply has changed to m.locks, m.dues and m.topics.
func (m *Machine) publishChanges() {
	w := m.writer
	if len(w.locks) > 0 || w.restored {
		m.locks.publish(w.locks, w.restored)
		w.locks = nil
	}
	if len(w.dues) > 0 || w.restored {
		m.dues.publish(w.dues, w.restored)
		w.dues = nil
	}
	if len(w.topics) > 0 || w.restored {
		m.topics.publish(w.topics, w.restored)
		w.topics = nil
	}
	if w.restored {
		m.workflows.Store(true)
	}
	w.restored = false
}

func (c *storeChanges) publish(keys []string, all bool) {
	c.recent.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on {
		return
	}
	c.all = c.all || all || c.limit > 0 && len(c.keys)+len(keys) > c.limit
	if c.all && c.limit > 0 {
		c.keys = nil
		return
	}
	c.keys = append(c.keys, keys...)
}

// happened reports whether a record has changed since the last call.
func (c *storeChanges) happened() bool { return c.recent.Load() && c.recent.Swap(false) }

// collect starts or stops the recording of changed keys. Each call drops the keys recorded before it.
func (c *storeChanges) collect(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on, c.keys, c.all = on, nil, false
}

// take returns the keys that were recorded since the last call. If incomplete is true, the list is not complete, and
// any key of the store may have changed.
func (c *storeChanges) take() (keys []string, incomplete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys, incomplete = c.keys, c.all
	c.keys, c.all = nil, false
	return keys, incomplete
}
