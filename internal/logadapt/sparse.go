package logadapt

import (
	"sync"
	"time"
)

// Sparse limits how often similar warnings are logged. The zero Sparse is ready for use. A Sparse is safe for
// concurrent use.
type Sparse struct {
	mu      sync.Mutex
	last    time.Time
	skipped int
}

// warningInterval is the shortest time between two similar warnings.
const warningInterval = 5 * time.Second

// Log calls the given function, unless it has called a function within the last five seconds. In that case, Log does
// nothing. The parameter more is the number of calls of Log that have done nothing since the last function was called.
func (s *Sparse) Log(log func(more int)) {
	s.mu.Lock()
	if !s.last.IsZero() && time.Since(s.last) < warningInterval {
		s.skipped++
		s.mu.Unlock()
		return
	}
	more := s.skipped
	s.last, s.skipped = time.Now(), 0
	s.mu.Unlock()
	log(more)
}
