package api

import (
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

const (
	sayRefusal  = time.Minute // between two lines about one remote host
	maxRefusals = 1024        // hosts that are remembered
)

// TurnedAway leaves a line in the log about who was turned away at the door, without a token
// or from a foreign site: one a minute for each host. The metrics count all. Safe for
// concurrent use; the zero value is ready.
type TurnedAway struct {
	mu   sync.Mutex // guards said
	said map[string]time.Time
}

// Note is told of a request: remote is host:port, method what it asked for, of a bounded
// length, and err why it was refused, without a token in it.
func (a *TurnedAway) Note(log *slog.Logger, remote, method string, err error) {
	host, _, splitErr := net.SplitHostPort(remote)
	if splitErr != nil {
		host = remote
	}
	if a.allows(host, time.Now()) {
		log.Warn("audit: a request was turned away", "remote", host, "method", method, "reason", fault.Text(err))
	}
}

func (a *TurnedAway) allows(host string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, ok := a.said[host]; ok && now.Sub(at) < sayRefusal {
		return false
	}
	if a.said == nil || len(a.said) >= maxRefusals {
		a.said = map[string]time.Time{}
	}
	a.said[host] = now
	return true
}
