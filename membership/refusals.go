package membership

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
)

// sayAgain is how long a refusal that was logged stays unsaid.
const sayAgain = time.Minute

// refusals counts decisions not to merge, hands them to whoever logs, and keeps those made
// during an attempt to join.
type refusals struct {
	count *prometheus.CounterVec // by reason
	say   chan *refusal          // drained by report; a full one drops, the count has it

	mu      sync.Mutex
	keeping bool
	kept    []*refusal
}

func newRefusals(count *prometheus.CounterVec) *refusals {
	return &refusals{count: count, say: make(chan *refusal, 64)}
}

// note takes a refusal in and returns its error. A nil refusal is none.
func (l *refusals) note(r *refusal) error {
	if r == nil {
		return nil
	}
	l.mu.Lock()
	if l.keeping {
		l.kept = append(l.kept, r)
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

// tell takes in that a packet or a connection is refused; with no error there is nothing to
// log. It has nothing to do with the attempt to join that may be under way.
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

// during runs an attempt to join the node at addr and returns the refusal that ended it, if
// one did. Others may join us at the same time: what they were refused for is told apart by
// the nodes the refusal was about.
func (l *refusals) during(addr netip.AddrPort, attempt func() error) (*refusal, error) {
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

// report logs refusals, each at most once a minute, until ctx ends.
func (l *refusals) report(ctx context.Context, log *slog.Logger) {
	said := map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-l.say:
			now := time.Now()
			key := string(r.reason) + " " + r.about
			if at, ok := said[key]; ok && now.Sub(at) < sayAgain {
				continue
			}
			for k, at := range said {
				if now.Sub(at) >= sayAgain {
					delete(said, k)
				}
			}
			said[key] = now
			log.Warn(r.headline(), "reason", string(r.reason), "error", fault.Text(r.err))
		}
	}
}

// headline is the message of the log.
func (r *refusal) headline() string {
	switch r.reason {
	case Plain, UnknownKey, Replayed, Forged, Authority, Expired, Certificate, Handshake:
		return "gossip is refused"
	}
	return "a node is refused"
}

// ownSeed is what a node answers itself, and what memberlist then takes for a failure.
const ownSeed = "the seed is this node itself"

func errItself() error { return fault.New(fault.Invalid, "membership.Join", ownSeed) }
