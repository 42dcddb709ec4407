package membership

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
)

// logInterval is the minimum time between two log records of the same refusal.
const logInterval = time.Minute

// refusals counts and logs the refusals of nodes, packets and connections. During an attempt to join, it also collects
// the refusals, because one of them may be the reason why the attempt failed.
type refusals struct {
	count *prometheus.CounterVec // by reason
	say   chan *refusal          // read by report; if the channel is full, a refusal is only counted
	epoch atomic.Uint32          // the highest epoch in a refusal; written under mu

	mu      sync.Mutex
	keeping bool
	kept    []*refusal
	last    *refusal // the newest refusal that does not only mean that a seed is this node
	lastAt  time.Time
}

func newRefusals(count *prometheus.CounterVec) *refusals {
	return &refusals{count: count, say: make(chan *refusal, 64)}
}

// note records a refusal and returns its error. A nil refusal is ignored.
func (l *refusals) note(r *refusal) error {
	if r == nil {
		return nil
	}
	l.mu.Lock()
	l.epoch.Store(max(l.epoch.Load(), r.epoch))
	if l.keeping {
		l.kept = append(l.kept, r)
	}
	if r.reason != itself {
		l.last, l.lastAt = r, time.Now()
	}
	l.mu.Unlock()
	if r.reason == itself {
		return r.err
	}
	l.count.WithLabelValues(string(r.reason)).Inc()
	select {
	case l.say <- r:
	default:
	}
	return r.err
}

// recent returns the error of the newest refusal within logInterval, or nil if there was none. It ignores the refusals
// that occur when a seed is this node itself.
func (l *refusals) recent(now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil || now.Sub(l.lastAt) >= logInterval {
		return nil
	}
	return l.last.err
}

// tell counts a refusal of a packet or a connection. If the refusal has an error, tell also queues it for the log,
// unless the queue is full. tell never blocks. Use note for the refusal of a node.
func (l *refusals) tell(r *refusal) {
	l.count.WithLabelValues(string(r.reason)).Inc()
	if r.err == nil {
		return
	}
	select {
	case l.say <- r:
	default:
	}
}

// tryJoin calls attempt, which tries to join the node at addr, and returns its error. If the attempt failed and
// refusals occurred during it, tryJoin also returns one of them, preferably one that concerns addr.
func (l *refusals) tryJoin(addr netip.AddrPort, attempt func() error) (*refusal, error) {
	l.mu.Lock()
	l.keeping, l.kept = true, nil
	l.mu.Unlock()
	err := attempt()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keeping = false
	if err == nil || len(l.kept) == 0 {
		return nil, err
	}
	for _, r := range l.kept {
		if slices.Contains(r.peers, addr) {
			return r, err
		}
	}
	return l.kept[len(l.kept)-1], err
}

// report logs each refusal at most once in logInterval, until ctx ends.
func (l *refusals) report(ctx context.Context, log *slog.Logger) {
	said := map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-l.say:
			now := time.Now()
			key := string(r.reason) + " " + r.about
			if at, ok := said[key]; ok && now.Sub(at) < logInterval {
				continue
			}
			for k, at := range said {
				if now.Sub(at) >= logInterval {
					delete(said, k)
				}
			}
			said[key] = now
			log.Warn(r.headline(), "reason", string(r.reason), "error", fault.Text(r.err))
		}
	}
}

// headline returns the message of the log record.
func (r *refusal) headline() string {
	switch r.reason {
	case Plain, UnknownKey, Replayed, Forged, Authority, Expired, Certificate, Handshake, Busy, Silent:
		return "gossip is refused"
	}
	return "a node is refused"
}

// ownSeed is the error of a node that is its own seed. Memberlist logs it as a failure.
const ownSeed = "the seed is this node itself"

func errItself() error { return fault.New(fault.Invalid, "membership.Join", ownSeed) }
