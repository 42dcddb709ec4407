package apitest

import (
	"context"
	"strings"
	"sync"

	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/internal/fault"
)

// locks is a lock store in memory. Its locks do not expire. TryLock and Unlock fail if the name of the resource begins
// with "fail".
type locks struct {
	mu    sync.Mutex
	token uint64
	held  map[lock.Key]heldLock
	known map[string]lock.Grant // the last grant with a request id, by that id
}

type heldLock struct {
	lock.Grant
	owner string
}

func (l *locks) check(k lock.Key) error {
	if strings.HasPrefix(k.Resource, "fail") {
		return fault.New(fault.Unavailable, "test", "the store is closing")
	}
	return nil
}

// TryLock implements lock.Store.
func (l *locks) TryLock(_ context.Context, c lock.Claim) (lock.Grant, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, ok := l.known[c.RequestID]; ok {
		return g, nil
	}
	if _, taken := l.held[c.Key]; taken || l.check(c.Key) != nil {
		return lock.Grant{}, l.check(c.Key)
	}
	l.token++
	g := lock.Grant{Granted: true, Token: l.token, Expiry: c.Expiry}
	if l.held == nil {
		l.held = map[lock.Key]heldLock{}
	}
	l.held[c.Key] = heldLock{g, c.Owner}
	if c.RequestID != "" {
		l.known = map[string]lock.Grant{c.RequestID: g}
	}
	return g, nil
}

// Renew implements lock.Leaser.
func (l *locks) Renew(_ context.Context, c lock.Claim) (lock.Grant, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[c.Key]
	if h.owner != c.Owner {
		return lock.Grant{}, nil
	}
	h.Expiry = c.Expiry
	l.held[c.Key] = h
	return h.Grant, nil
}

// Look implements lock.Leaser.
func (l *locks) Look(_ context.Context, k lock.Key) (lock.Grant, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[k].Grant, nil
}

// Unlock implements lock.Store.
func (l *locks) Unlock(_ context.Context, r lock.Release) (lock.Status, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, taken := l.held[r.Key]
	switch {
	case l.check(r.Key) != nil:
		return lock.InternalError, l.check(r.Key)
	case !taken:
		return lock.DoesNotExist, nil
	case h.owner != r.Owner || r.Token != 0 && h.Token != r.Token:
		return lock.BelongsToOthers, nil
	}
	delete(l.held, r.Key)
	return lock.Unlocked, nil
}

// Close implements lock.Store.
func (l *locks) Close() error { return nil }

// simpleLocks hides the methods of lock.Leaser, such as Renew.
type simpleLocks struct{ lock.Store }

// LockCatalogue implements api.LockStores.
type LockCatalogue struct {
	List  []*lock.Instance
	Ready bool
}

func newLocks() *LockCatalogue {
	return &LockCatalogue{Ready: true, List: []*lock.Instance{
		{Name: "locks", Type: "lock.test", StateStore: "orders", Store: &locks{}},
		{Name: "simple", Type: "lock.simple", Store: simpleLocks{&locks{}}},
		{Name: "foreign", Type: "lock.test", Scopes: []string{"another"}, Store: &locks{}},
	}}
}

// LockStore implements api.LockStores.
func (c *LockCatalogue) LockStore(name string) (*lock.Instance, bool) {
	for _, i := range c.List {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

// LockStores implements api.LockStores.
func (c *LockCatalogue) LockStores() []*lock.Instance { return c.List }

// Loaded implements api.LockStores.
func (c *LockCatalogue) Loaded() bool { return c.Ready }
