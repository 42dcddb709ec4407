package api

import (
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

const (
	refusalInterval = time.Minute // minimum time between two log lines for one remote host
	maxRefusals     = 1024        // maximum number of hosts to remember
)

// TurnedAway logs requests that were refused because of a missing or wrong token, a foreign origin or a foreign Host
// header. It logs at most one request per minute and remote host. It remembers at most maxRefusals hosts. When it has
// reached this number, it forgets all hosts, and may log a request of the same host again within the minute. Metrics
// count all refused requests. The zero value is ready to use. TurnedAway is safe for concurrent use.
type TurnedAway struct {
	mu     sync.Mutex // guards logged
	logged map[string]time.Time
}

// Note logs a refused request, unless it has logged a request of the same host within the last minute. remote is the
// address of the client, as host:port. method must have a bounded length. err is the reason and must not contain a
// token.
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
	if at, ok := a.logged[host]; ok && now.Sub(at) < refusalInterval {
		return false
	}
	if a.logged == nil || len(a.logged) >= maxRefusals {
		a.logged = map[string]time.Time{}
	}
	a.logged[host] = now
	return true
}
