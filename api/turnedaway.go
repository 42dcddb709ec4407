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
// header. It logs at most one request per minute and remote host. After maxRefusals hosts it forgets all of them, and
// may then log a host again within the minute. The zero value is ready to use. TurnedAway is safe for concurrent use.
type TurnedAway struct {
	mu     sync.Mutex // guards logged
	logged map[string]time.Time
}

// Note logs a refused request, unless it has logged a request of the same host within the last minute. remote is the
// address of the client, as host:port. The caller must limit the length of method. err is the reason for the refusal,
// and must not contain a token.
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
