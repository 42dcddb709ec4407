package outside

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/component/state"
)

// Reader reads keys from a database.
type Reader interface {
	// ReadOne reads a key.
	ReadOne(ctx context.Context, key string) (state.Item, error)
	// ReadMany reads keys in one round trip. The items are in the order of the keys, which may repeat.
	ReadMany(ctx context.Context, keys []string) ([]state.Item, error)
}

// Gatherer combines concurrent reads of single keys into requests for several keys. It is safe for concurrent use. Its
// goroutines end when no key is waiting.
//
// At most maxReads requests are in progress at a time. Further keys wait until a request ends, and are then read
// together. If a request for several keys fails, each of these keys is read again by itself. Such repeated reads do not
// count towards maxReads.
type Gatherer struct {
	reader Reader

	mu      sync.Mutex
	waiting []*wanted
	running int       // reads that maxReads limits
	repeats int       // reads of single keys after a failed read of several keys
	idle    sync.Cond // signals that running and repeats have become 0
}

// wanted is a key that a caller waits for.
type wanted struct {
	key   string
	ready chan struct{} // closed when item and err are set
	item  state.Item
	err   error

	left    bool // the caller has given up; guarded by Gatherer.mu
	repeats bool // the shared read failed, and Gatherer.repeats counts its repetition; guarded by Gatherer.mu
}

const (
	maxReads  = 2   // reads in progress; with more reads, fewer keys would share a read
	maxGather = 128 // largest number of keys in one read

	gatherTime = 10 * time.Second // longest time of a read of several keys
)

// NewGatherer returns a Gatherer for a reader.
func NewGatherer(r Reader) *Gatherer {
	g := &Gatherer{reader: r}
	g.idle.L = &g.mu
	return g
}

// Get reads a key. While maxReads requests are in progress, the key waits, and is then read together with other keys.
// If this shared read fails, Get reads its key alone, because another key may have caused the error. If ctx ends during
// the wait or the shared read, Get returns the error of ctx.
func (g *Gatherer) Get(ctx context.Context, key string) (state.Item, error) {
	g.mu.Lock()
	if g.running < maxReads {
		g.running++
		g.mu.Unlock()
		defer g.next()
		return g.reader.ReadOne(ctx, key)
	}
	w := &wanted{key: key, ready: make(chan struct{})}
	g.waiting = append(g.waiting, w)
	g.mu.Unlock()
	select {
	case <-w.ready:
	case <-ctx.Done():
		g.leave(w)
		return state.Item{}, ctx.Err()
	}
	if w.err != nil { // the error may concern another key
		defer g.endRepeat()
		return g.reader.ReadOne(ctx, key)
	}
	return w.item, w.item.Err
}

// leave makes the Gatherer forget a caller that has given up.
func (g *Gatherer) leave(w *wanted) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = slices.DeleteFunc(g.waiting, func(one *wanted) bool { return one == w })
	w.left = true
	if w.repeats {
		g.endRepeatLocked()
	}
}

// endRepeat records that a repeated read has ended.
func (g *Gatherer) endRepeat() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.endRepeatLocked()
}

func (g *Gatherer) endRepeatLocked() {
	g.repeats--
	g.signalLocked()
}

// next is called after Get has read a single key alone. If other keys are waiting, it starts a goroutine that reads
// them. Otherwise it records that the read has ended.
func (g *Gatherer) next() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.end()
		return
	}
	go g.run()
}

// end records that one of the reads that maxReads limits has ended. The caller holds g.mu.
func (g *Gatherer) end() {
	g.running--
	g.signalLocked()
}

// signalLocked wakes Wait if no read is in progress. The caller holds g.mu.
func (g *Gatherer) signalLocked() {
	if g.running == 0 && g.repeats == 0 {
		g.idle.Broadcast()
	}
}

// run reads keys until none waits.
func (g *Gatherer) run() {
	for {
		g.mu.Lock()
		if len(g.waiting) == 0 {
			g.end()
			g.mu.Unlock()
			return
		}
		some := g.waiting[:min(len(g.waiting), maxGather)]
		if g.waiting = g.waiting[len(some):]; len(g.waiting) == 0 {
			g.waiting = nil
		}
		g.mu.Unlock()
		keys := make([]string, len(some))
		for i, w := range some {
			keys[i] = w.key
		}
		// The callers have contexts of their own. A read that hangs must not block all others for long.
		ctx, cancel := context.WithTimeout(context.Background(), gatherTime)
		items, err := g.reader.ReadMany(ctx, keys)
		cancel()
		seen := make(map[string]bool, len(some))
		for i, w := range some {
			if w.err = err; err == nil {
				w.item = items[i]
				if seen[w.key] { // each caller may change its value
					w.item.Value = bytes.Clone(w.item.Value)
				}
				seen[w.key] = true
			}
		}
		if err != nil {
			g.repeat(some)
		}
		for _, w := range some {
			close(w.ready)
		}
	}
}

// repeat counts the callers that will read their keys again after a failed shared read. It must be called before these
// callers continue, because otherwise Wait could return before their reads begin.
func (g *Gatherer) repeat(some []*wanted) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range some {
		if !w.left {
			w.repeats = true
			g.repeats++
		}
	}
}

// Wait waits until no read is in progress. The caller must first close the client of the database, so that reads end.
// Get may be called concurrently.
func (g *Gatherer) Wait() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.running > 0 || g.repeats > 0 {
		g.idle.Wait()
	}
}
