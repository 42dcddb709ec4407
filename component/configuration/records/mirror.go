package records

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

const (
	watchMark = 15 * time.Second      // how often the position advances without changes
	minPause  = 50 * time.Millisecond // pause before a watch is started again; it doubles
	maxPause  = 2 * time.Second
)

// mirror follows the items of a store with one watch, which all subscriptions share.
//
// If the watch cannot be resumed, because the history was truncated or a backup was restored, the mirror starts a new
// watch. It finds the changes by comparing the new revisions of the items with the old ones.
type mirror struct {
	store  *Store
	cancel context.CancelFunc
	synced chan struct{} // closed when the current state is known, or the start has failed

	mu      sync.Mutex
	err     error // error of a start that failed
	stopped error // error of subscriptions after stop
	ready   bool
	subs    map[*subscriber]bool
	known   map[string]uint64 // revisions of the items
	applied uint64            // every change up to this revision was seen

	// The fields below are used by run only.
	resume state.Position  // position of the next watch
	fresh  map[string]bool // keys of a snapshot that is being read; nil = none
	differ []state.Change  // items of the snapshot whose revision is not the one in known
}

// subscriber is one subscription.
type subscriber struct {
	queue *configuration.Queue
	keys  map[string]bool   // subscribed keys; nil = all
	floor map[string]uint64 // revisions of the items that initial has delivered
	// newest has the revisions of changes that arrive while initial reads the current items; nil = initial is not
	// running
	newest map[string]uint64
}

// Subscribe implements configuration.Store.
func (s *Store) Subscribe(ctx context.Context, r configuration.SubscribeRequest) (configuration.Subscription, error) {
	sub := &subscriber{}
	if r.Initial {
		sub.newest = map[string]uint64{}
	}
	if len(r.Keys) > 0 {
		sub.keys = make(map[string]bool, len(r.Keys))
		for _, k := range r.Keys {
			if err := configuration.CheckKey(k); err != nil {
				return nil, err
			}
			sub.keys[k] = true
		}
	}
	m, err := s.join(sub)
	if err != nil {
		return nil, err
	}
	sub.queue = configuration.NewQueue(func() { s.leave(m, sub) })
	sub.queue.TellPresent(func() []string { return m.present(sub) })
	if err := m.await(ctx, sub); err != nil {
		sub.queue.Close()
		return nil, err
	}
	if r.Initial {
		if err := s.initial(ctx, m, sub, r.Keys); err != nil {
			sub.queue.Close()
			return nil, err
		}
	}
	return sub.queue, nil
}

// join adds a subscription to the mirror. For the first subscription, it starts the mirror.
func (s *Store) join(sub *subscriber) (*mirror, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fault.New(fault.Unavailable, "records.Subscribe", "the configuration store is closed")
	}
	if m := s.mirror; m != nil && m.add(sub) {
		return m, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &mirror{store: s, cancel: cancel, synced: make(chan struct{}), subs: map[*subscriber]bool{sub: false},
		known: map[string]uint64{}}
	s.mirror = m
	s.running.Go(func() { m.run(ctx) })
	return m, nil
}

// add adds a subscription and returns true. If the start of the mirror has failed, it returns false.
func (m *mirror) add(sub *subscriber) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return false
	}
	m.subs[sub] = false
	return true
}

// await waits until the mirror has read the current state. From then on, sub receives all changes. await returns an
// error if the mirror has failed to start, or if ctx ends first.
func (m *mirror) await(ctx context.Context, sub *subscriber) error {
	select {
	case <-m.synced:
	case <-ctx.Done():
		return &fault.Error{Code: fault.Timeout, Op: "records.Subscribe", Err: ctx.Err(),
			Msg: "the present state could not be read in time"}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	if m.stopped != nil { // the mirror has stopped, so it would never end the subscription
		return m.stopped
	}
	m.subs[sub] = true
	return nil
}

// present returns the keys of the existing items that belong to a subscription.
func (m *mirror) present(sub *subscriber) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for stored := range m.known {
		if key := strings.TrimPrefix(stored, prefix); sub.keys == nil || sub.keys[key] {
			out = append(out, key)
		}
	}
	return out
}

// leave removes a subscription, and ends the mirror after the last one.
func (s *Store) leave(m *mirror, sub *subscriber) {
	s.mu.Lock()
	m.mu.Lock()
	delete(m.subs, sub)
	last := len(m.subs) == 0 && s.mirror == m
	if last {
		s.mirror = nil
	}
	m.mu.Unlock()
	s.mu.Unlock()
	if last {
		m.cancel()
	}
}

// stop ends the mirror and all subscriptions.
func (m *mirror) stop(err error) {
	m.cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = err
	for sub, started := range m.subs {
		if started {
			sub.queue.Fail(err)
		}
	}
}

// initial reads the current items and delivers them to a new subscription. It leaves out an item if a newer change of
// this item has already been delivered.
func (s *Store) initial(ctx context.Context, m *mirror, sub *subscriber, keys []string) error {
	found, err := s.Get(ctx, configuration.GetRequest{Keys: keys, Strong: true})
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped != nil { // the queue has ended, so it would drop the items
		return m.stopped
	}
	sub.floor = make(map[string]uint64, len(found.Items))
	for i := range found.Items {
		item := &found.Items[i]
		revision, _ := strconv.ParseUint(item.Version, 10, 64)
		if sub.newest[item.Key] > revision {
			continue
		}
		sub.floor[item.Key] = revision
		sub.queue.Put(*item)
	}
	sub.newest = nil
	return nil
}

// run follows the store until ctx ends.
func (m *mirror) run(ctx context.Context) {
	log := m.store.options.Logger
	pause := minPause
	for {
		began := time.Now()
		err := m.follow(ctx)
		if ctx.Err() != nil {
			m.begin(ctx.Err())
			return
		}
		if !m.ready && !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Timeout) {
			m.begin(err)
			return
		}
		if time.Since(began) > maxPause {
			pause = minPause
		}
		log.Debug("the subscription is started again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// begin records that the mirror has started or, if err is not nil, that it has failed to start. It wakes the
// subscriptions that wait for this. If the mirror has already started or failed, begin does nothing.
func (m *mirror) begin(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ready {
		return
	}
	if err != nil {
		m.err = fault.Wrap(err, "records.Subscribe", "the present state cannot be read")
	}
	m.ready = true
	close(m.synced)
}

// follow watches the store until the watch ends with an error. The next call resumes the watch at the last position. If
// this is not possible, it begins with a new snapshot.
func (m *mirror) follow(ctx context.Context) error {
	r := state.WatchRequest{Prefix: prefix, Snapshot: true}
	if m.ready && m.resume != (state.Position{}) {
		r.Snapshot, r.Resume, r.From = false, true, m.resume
	}
	w, err := m.store.backing.Watch(ctx, r)
	if err != nil {
		if ended(err) {
			m.resume = state.Position{}
		}
		return err
	}
	defer w.Close()
	if r.Snapshot {
		m.fresh, m.differ = map[string]bool{}, nil
	}
	for {
		part, err := w.Next(ctx, watchMark)
		if err != nil {
			if ended(err) {
				m.resume = state.Position{}
			}
			return err
		}
		if err := m.apply(&part); err != nil {
			return err
		}
		if m.fresh == nil {
			m.resume = w.Position()
		}
	}
}

// apply handles one part of a watch. It delivers changes to the subscriptions, and collects the items of a snapshot
// until the snapshot is complete. If the mirror was stopped, apply changes nothing and returns an error.
func (m *mirror) apply(part *state.WatchPart) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped != nil {
		return m.stopped
	}
	for i := range part.Items {
		c := &part.Items[i]
		m.fresh[c.Key] = true
		switch {
		case !m.ready:
			m.known[c.Key] = c.Revision
		case m.known[c.Key] != c.Revision:
			m.differ = append(m.differ, *c)
		}
	}
	if part.Synced {
		if err := m.complete(part.Seen); err != nil {
			return err
		}
	}
	for i := range part.Changes {
		if c := &part.Changes[i]; c.Revision > m.applied { // a resumed watch may repeat some changes
			m.applied = c.Revision
			m.changed(c)
		}
	}
	return nil
}

// complete handles the end of a snapshot, which was taken at the given revision. It delivers the differences between
// the snapshot and the known items. It returns fault.Unavailable if a newer change was already delivered. The caller
// holds m.mu.
func (m *mirror) complete(revision uint64) error {
	fresh, differ := m.fresh, m.differ
	m.fresh, m.differ = nil, nil
	if revision < m.applied {
		return fault.New(fault.Unavailable, "records.Subscribe", "the snapshot is older than what was delivered")
	}
	m.applied = revision
	for i := range differ {
		m.changed(&differ[i])
	}
	for key := range m.known {
		if !fresh[key] {
			m.changed(&state.Change{Item: state.Item{Key: key}, Revision: revision, Deleted: true})
		}
	}
	if !m.ready {
		m.ready = true
		close(m.synced)
	}
	return nil
}

// changed records a change and delivers it to the subscriptions. The caller holds m.mu.
func (m *mirror) changed(c *state.Change) {
	key := strings.TrimPrefix(c.Key, prefix)
	item := configuration.Item{Key: key}
	if c.Deleted {
		delete(m.known, c.Key)
	} else {
		m.known[c.Key] = c.Revision
		var err error
		if item, err = itemOf(c.Key, c.Value, c.ETag); err != nil {
			m.store.options.Logger.Error("a configuration item cannot be delivered", "key", key, "error", err)
			return
		}
	}
	for sub, started := range m.subs {
		if started && (sub.keys == nil || sub.keys[key]) && c.Revision > sub.floor[key] {
			delete(sub.floor, key)
			if sub.newest != nil {
				sub.newest[key] = c.Revision
			}
			sub.queue.Put(item)
		}
	}
}
