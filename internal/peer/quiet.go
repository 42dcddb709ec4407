package peer

import (
	"log/slog"
	"sync"
	"time"
)

const (
	quietFor = time.Minute
	quietMax = 256 // keys remembered

	formGrace = 30 * time.Second // how long refusals are expected while a cluster forms or a node joins
)

// quiet limits the log lines about refused connections, because a refused peer keeps retrying. It permits one line
// per minute for each server and reason.
type quiet struct {
	mu       sync.Mutex // guards what follows
	seen     map[news]time.Time
	unformed time.Time // first refusal because a side has no cluster yet
}

type news struct {
	reason Reason
	server string
}

func newQuiet() *quiet { return &quiet{seen: map[news]time.Time{}} }

// level returns the log level for a refused connection, which is normally WARN. While a cluster forms, some connections
// are refused because one side has no cluster yet. The level of these refusals is INFO until formGrace after the first
// of them.
func (q *quiet) level(r Reason) slog.Level {
	if r != ReasonUnformed {
		return slog.LevelWarn
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.unformed.IsZero() {
		q.unformed = time.Now()
	}
	if time.Since(q.unformed) < formGrace {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

func (q *quiet) allows(r Reason, server string) bool {
	now, key := time.Now(), news{r, server}
	q.mu.Lock()
	defer q.mu.Unlock()
	if at, ok := q.seen[key]; ok && now.Sub(at) < quietFor {
		return false
	}
	if len(q.seen) >= quietMax {
		for k, at := range q.seen {
			if now.Sub(at) >= quietFor {
				delete(q.seen, k)
			}
		}
	}
	if len(q.seen) >= quietMax {
		return false // the peer may invent names; the metrics still count
	}
	q.seen[key] = now
	return true
}
