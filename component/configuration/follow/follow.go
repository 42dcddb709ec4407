// Package follow implements subscriptions for configuration stores on external servers, where notifications can be
// lost. The package owns the version of each item that a subscription has seen.
//
// A notification only says which keys have changed, and the package then reads these keys. It also reads all keys after
// each new connection, and periodically. So a lost notification delays a change, but every subscription eventually gets
// the newest value of each key.
//
// A Hub has two goroutines for each channel with subscriptions: one receives notifications, and one reads items. Close
// waits for them.
package follow

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
)

// Source is a server that keeps items. All methods are safe for concurrent use.
type Source interface {
	// Read returns the items with the given keys, or all items if keys is empty. Each value is at least as new as the
	// last change that was reported before the call.
	Read(ctx context.Context, keys []string) ([]configuration.Item, error)
	// Listen connects to the server and calls reports.Ready. It then calls reports.Changed for every change, until
	// ctx ends or the connection is lost. If the server cannot report changes, Listen calls reports.Silent; this is
	// not an error.
	Listen(ctx context.Context, channel string, reports Reports) error
}

// Reports has the functions that a Source calls.
type Reports struct {
	Ready   func()               // every change from now on is reported
	Silent  func(why string)     // changes are not reported; Listen still waits until ctx ends
	Changed func(keys ...string) // these keys may have changed; none = any key
}

// Options are the settings of a Hub. Source and Logger are required.
type Options struct {
	Source Source
	Logger *slog.Logger
	Check  time.Duration // pause between reads of all keys while changes are reported; 0 = one minute
	Poll   time.Duration // pause between these reads while changes are not reported; 0 = 5 s
}

// The pauses between attempts to connect.
const (
	minPause = 100 * time.Millisecond // the first pause; each further pause is twice as long
	maxPause = 5 * time.Second
	readTime = 30 * time.Second // longest time of one read
)

// warnPause is the minimum time between two warnings about failed reads.
const warnPause = time.Minute

// maxDirty is the maximum number of changed keys that a channel remembers until the next read. If more keys change, the
// channel reads all keys instead.
const maxDirty = 10_000

// Hub starts subscriptions. It is safe for concurrent use.
type Hub struct {
	o       Options
	running sync.WaitGroup

	mu       sync.Mutex
	channels map[string]*channel
	closed   bool
}

// New returns a Hub. It does nothing before the first subscription.
func New(o Options) *Hub {
	o.Check = cmp.Or(o.Check, time.Minute)
	o.Poll = cmp.Or(o.Poll, 5*time.Second)
	return &Hub{o: o, channels: map[string]*channel{}}
}

// channel has the subscriptions to one channel of the server.
type channel struct {
	hub    *Hub
	flaws  *configuration.Flaws
	name   string
	cancel context.CancelFunc
	ready  chan struct{} // closed when the first connection works
	wake   chan struct{} // has a value if there is something to read
	warned time.Time     // time of the last warning about a read; only the goroutine of run uses it

	reading chan struct{} // has a value while items are read and compared

	mu    sync.Mutex           // also guards subscriber.known
	subs  map[*subscriber]bool // true = it has its first state
	dirty map[string]bool      // keys to read again
	all   bool                 // read all keys
	poll  bool                 // changes are not reported
}

// subscriber is one subscription.
type subscriber struct {
	queue *configuration.Queue
	keys  []string       // sorted; empty = all
	known map[string]sum // items that exist, by key; guarded by channel.mu
}

// sum is a hash of the value, the version and the metadata of an item.
type sum [sha256.Size]byte

// Subscribe starts a subscription and returns after it has read the current items. If initial is true, the subscription
// delivers these items first. The server reports changes on the channel with the given name.
func (h *Hub) Subscribe(ctx context.Context, name string, keys []string, initial bool) (configuration.Subscription,
	error) {
	sub := &subscriber{keys: slices.Clone(keys), known: map[string]sum{}}
	slices.Sort(sub.keys)
	sub.keys = slices.Compact(sub.keys)
	c, err := h.join(name, sub)
	if err != nil {
		return nil, err
	}
	if err := c.first(ctx, sub, initial); err != nil {
		sub.queue.Close()
		return nil, err
	}
	return sub.queue, nil
}

// join adds a subscription to the channel with the given name. If this channel has no subscriptions yet, join starts
// it.
func (h *Hub) join(name string, sub *subscriber) (*channel, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, closed("follow.Subscribe")
	}
	c := h.channels[name]
	if c == nil {
		ctx, cancel := context.WithCancel(context.Background())
		c = &channel{hub: h, flaws: configuration.NewFlaws(h.o.Logger), name: name, cancel: cancel,
			ready: make(chan struct{}), wake: make(chan struct{}, 1), reading: make(chan struct{}, 1),
			subs: map[*subscriber]bool{}, dirty: map[string]bool{}}
		h.channels[name] = c
		h.running.Go(func() { c.run(ctx) })
	}
	c.mu.Lock()
	c.subs[sub] = false
	c.mu.Unlock()
	sub.queue = configuration.NewQueue(func() { h.leave(c, sub) })
	sub.queue.TellPresent(func() []string { return c.present(sub) })
	return c, nil
}

// leave removes a subscription, and ends the channel after the last one.
func (h *Hub) leave(c *channel, sub *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.subs, sub)
	if len(c.subs) == 0 {
		c.cancel()
		if h.channels[c.name] == c {
			delete(h.channels, c.name)
		}
	}
}

// Close ends all subscriptions and waits for the goroutines.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	for _, c := range h.channels {
		c.cancel()
		c.mu.Lock()
		for sub := range c.subs {
			sub.queue.Fail(closed("follow.Next"))
		}
		c.mu.Unlock()
	}
	h.mu.Unlock()
	h.running.Wait()
}

func closed(op string) error {
	return fault.New(fault.Unavailable, op, "the configuration store is closed")
}

// first reads the present items of a subscription. If initial is true, it delivers them.
func (c *channel) first(ctx context.Context, sub *subscriber, initial bool) error {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return &fault.Error{Code: fault.Timeout, Op: "follow.Subscribe", Err: ctx.Err(),
			Msg: "the server of the configuration store did not answer in time"}
	}
	if err := c.begin(ctx); err != nil {
		return err
	}
	defer c.end()
	items, err := c.hub.o.Source.Read(ctx, sub.keys)
	if err != nil {
		return err
	}
	if initial {
		sub.queue.Put(items...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range items {
		sub.known[items[i].Key] = sumOf(&items[i])
	}
	c.subs[sub] = true
	return nil
}

// present returns the keys of the items that existed when the channel last read the keys of sub. After Hub.Close, the
// result does not change any more.
func (c *channel) present(sub *subscriber) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(sub.known))
}

// begin waits until no other goroutine reads items on this channel. The caller must call end after its read. If two
// goroutines could read at the same time, an older value might replace a newer one.
func (c *channel) begin(ctx context.Context) error {
	select {
	case c.reading <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &fault.Error{Code: fault.Timeout, Op: "follow.Subscribe", Err: ctx.Err(),
			Msg: "the present items could not be read in time"}
	}
}

func (c *channel) end() { <-c.reading }

// run follows the server until ctx ends.
func (c *channel) run(ctx context.Context) {
	var listener sync.WaitGroup
	defer listener.Wait()
	listener.Go(func() { c.listen(ctx) })
	pause := minPause
	for {
		c.mu.Lock()
		interval := c.hub.o.Check
		if c.poll {
			interval = c.hub.o.Poll
		}
		c.mu.Unlock()
		timer := time.NewTimer(interval)
		select {
		case <-ctx.Done():
		case <-c.wake:
		case <-timer.C:
			c.changed()
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		if err := c.refresh(ctx); err != nil {
			if pause > minPause { // not the first failure in a row
				c.warn("configuration items cannot be read, so subscriptions get no changes", err)
			}
			if !wait(ctx, pause) {
				return
			}
			pause = min(2*pause, maxPause)
			c.notify()
			continue
		}
		pause = minPause
	}
}

// warn logs a warning about a read, but not more than one in warnPause.
func (c *channel) warn(msg string, err error) {
	if time.Since(c.warned) < warnPause {
		return
	}
	c.warned = time.Now()
	c.hub.o.Logger.Warn(msg, "error", fault.Text(err))
}

// listen connects to the server again and again until ctx ends.
func (c *channel) listen(ctx context.Context) {
	opened := sync.OnceFunc(func() { close(c.ready) })
	pause, reported := minPause, false
	for {
		reports := Reports{
			Ready: func() { c.connected(false); pause = minPause; opened() },
			Silent: func(why string) {
				if !reported {
					c.hub.o.Logger.Warn("the server does not report changes of configuration items", "reason", why,
						"hint", "they are read every "+c.hub.o.Poll.String())
				}
				reported = true
				c.connected(true)
				pause = minPause
				opened()
			},
			Changed: c.changed,
		}
		err := c.hub.o.Source.Listen(ctx, c.name, reports)
		if ctx.Err() != nil {
			return
		}
		c.hub.o.Logger.Debug("the connection for changes of configuration items was lost", "error", err)
		if !wait(ctx, pause) {
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// wait waits for d and returns true. If ctx ends first, it returns false immediately.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// connected schedules a read of all keys. It is called after each new connection to the server, because the server does
// not report earlier changes. If poll is true, the server reports no changes at all, and all keys are read every
// Options.Poll.
func (c *channel) connected(poll bool) {
	c.mu.Lock()
	c.poll = poll
	c.mu.Unlock()
	c.changed()
}

// changed schedules a read of the given keys, or of all keys if none are given. The method run carries out the read.
func (c *channel) changed(keys ...string) {
	c.mu.Lock()
	c.all = c.all || len(keys) == 0
	for _, k := range keys {
		c.dirty[k] = true
	}
	if len(c.dirty) > maxDirty { // the server may report keys that no subscription has
		c.all, c.dirty = true, map[string]bool{}
	}
	c.mu.Unlock()
	c.notify()
}

func (c *channel) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// refresh reads the keys that may have changed, and delivers the changes to the subscriptions. If it fails, the next
// call reads the same keys again.
func (c *channel) refresh(ctx context.Context) error {
	subs, dirty, all, err := c.reported(ctx)
	if err != nil {
		return err
	}
	keys, whole := scope(subs, dirty, all)
	if len(keys) == 0 && !whole {
		return nil
	}
	if whole {
		err = c.deliver(ctx, subs, nil)
		if unreadable(err) {
			c.warn("configuration items cannot be read all at once, so new items are missed that the server does not "+
				"report", err)
			keys, err = c.known(subs, dirty), nil
		}
	}
	if len(keys) > 0 {
		err = c.deliver(ctx, subs, keys)
	}
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all = c.all || all
		maps.Copy(c.dirty, dirty)
	}
	return err
}

// reported returns the keys that were reported as changed, and forgets them. If all is true, any key may have changed.
// subs are the subscriptions for which the method first has read the items.
//
// If another read of the channel is in progress, such as that of the method first, reported waits for its end, because
// that read may have returned older values.
func (c *channel) reported(ctx context.Context) (subs []*subscriber, dirty map[string]bool, all bool, err error) {
	if err := c.begin(ctx); err != nil {
		return nil, nil, false, err
	}
	defer c.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	dirty, all = c.dirty, c.all
	c.dirty, c.all = map[string]bool{}, false
	for sub, started := range c.subs {
		if started {
			subs = append(subs, sub)
		}
	}
	return subs, dirty, all, nil
}

// deliver reads the given sorted keys, or all keys if none are given, and delivers the changes to subs. If several
// given keys cannot be read together, it reads them in halves. It skips a single key that cannot be read, so that this
// key does not delay the changes of other keys.
func (c *channel) deliver(ctx context.Context, subs []*subscriber, keys []string) error {
	err := c.readOnce(ctx, subs, keys)
	switch {
	case unreadable(err) && len(keys) > 1:
		half := len(keys) / 2
		if err := c.deliver(ctx, subs, keys[:half]); err != nil {
			return err
		}
		return c.deliver(ctx, subs, keys[half:])
	case unreadable(err) && len(keys) == 1:
		c.flaws.Warn(keys[0], "a configuration item cannot be read, and subscriptions do not get its changes",
			"error", fault.Text(err))
		return nil
	}
	return err
}

// readOnce reads the given keys, or all keys if none are given, and delivers the changes to subs. Each call has its own
// timeout.
func (c *channel) readOnce(ctx context.Context, subs []*subscriber, keys []string) error {
	if err := c.begin(ctx); err != nil {
		return err
	}
	defer c.end()
	bounded, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	items, err := c.hub.o.Source.Read(bounded, keys)
	if err != nil {
		return err
	}
	present := make(map[string]*configuration.Item, len(items))
	for i := range items {
		present[items[i].Key] = &items[i]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil { // Close has ended the queues, so present must not contain what they would drop
		return err
	}
	for _, sub := range subs {
		sub.compare(present, keys, len(keys) == 0)
	}
	return nil
}

// unreadable reports whether a read failed because of the items that were read.
func unreadable(err error) bool { return fault.Is(err, fault.Corrupt) || fault.Is(err, fault.TooLarge) }

// known returns the sorted keys that the subscriptions know, and those in dirty.
func (c *channel) known(subs []*subscriber, dirty map[string]bool) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := maps.Clone(dirty)
	for _, sub := range subs {
		for k := range sub.known {
			all[k] = true
		}
		for _, k := range sub.keys {
			all[k] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// scope returns the sorted keys to read again for the given subscriptions. These are the subscribed keys in dirty, or
// all subscribed keys if all is true.
//
// If all is true and one of the subscriptions is for all keys, whole is true and keys is empty. Every key on the server
// must then be read.
func scope(subs []*subscriber, dirty map[string]bool, all bool) (keys []string, whole bool) {
	wanted := map[string]bool{}
	for _, sub := range subs {
		switch {
		case len(sub.keys) == 0 && all:
			return nil, true
		case len(sub.keys) == 0:
			maps.Copy(wanted, dirty)
		default:
			for _, k := range sub.keys {
				if all || dirty[k] {
					wanted[k] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(wanted)), false
}

// compare delivers the items that were changed or deleted since s last saw them. present has the items of the latest
// read. If whole is true, all keys were read. Otherwise only the given sorted keys were read, and other keys are
// ignored. The caller holds channel.mu.
func (s *subscriber) compare(present map[string]*configuration.Item, keys []string, whole bool) {
	look := keys
	switch {
	case len(s.keys) > 0:
		look = s.keys
	case whole:
		union := maps.Clone(s.known)
		for k := range present {
			union[k] = sum{}
		}
		look = slices.Sorted(maps.Keys(union))
	}
	var changes []configuration.Item
	for _, k := range look {
		if _, read := slices.BinarySearch(keys, k); !whole && !read {
			continue
		}
		item, exists := present[k]
		before, seen := s.known[k]
		switch {
		case exists:
			if now := sumOf(item); !seen || now != before {
				s.known[k] = now
				changes = append(changes, *item)
			}
		case seen:
			delete(s.known, k)
			changes = append(changes, configuration.Item{Key: k})
		}
	}
	s.queue.Put(changes...)
}

func sumOf(i *configuration.Item) sum {
	text, _ := json.Marshal([]any{i.Value, i.Version, i.Metadata}) // strings and a map of strings cannot fail
	return sha256.Sum256(text)
}
