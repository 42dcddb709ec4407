package peer

import (
	"sync"
	"time"
)

const (
	quietFor = time.Minute
	quietMax = 256 // keys remembered
)

// quiet keeps a peer that tries again and again from filling the log: the same news about
// the same server is told once a minute.
type quiet struct {
	mu   sync.Mutex // guards told
	told map[news]time.Time
}

type news struct {
	reason Reason
	server string
}

func newQuiet() *quiet { return &quiet{told: map[news]time.Time{}} }

func (q *quiet) allows(r Reason, server string) bool {
	now, key := time.Now(), news{r, server}
	q.mu.Lock()
	defer q.mu.Unlock()
	if at, ok := q.told[key]; ok && now.Sub(at) < quietFor {
		return false
	}
	if len(q.told) >= quietMax {
		for k, at := range q.told {
			if now.Sub(at) >= quietFor {
				delete(q.told, k)
			}
		}
	}
	if len(q.told) >= quietMax {
		return false // somebody makes names up; the metrics still count
	}
	q.told[key] = now
	return true
}
