package configuration

import (
	"log/slog"
	"strconv"
	"sync"
)

// maxFlawed is the maximum number of keys that a Flaws logs.
const maxFlawed = 100

// Flaws logs items that a store cannot deliver as they are. It logs each key at most once, because a subscription
// reads its items repeatedly. NewFlaws creates a Flaws. It is safe for concurrent use.
type Flaws struct {
	log  *slog.Logger
	mu   sync.Mutex
	keys map[string]bool // keys that were logged
}

// NewFlaws returns a Flaws that has logged nothing.
func NewFlaws(log *slog.Logger) *Flaws { return &Flaws{log: log, keys: map[string]bool{}} }

// Warn logs a message about a key, with further attributes. It logs no key twice, and no more than maxFlawed keys.
func (f *Flaws) Warn(key, msg string, attributes ...any) {
	f.mu.Lock()
	logged := f.keys[key] || len(f.keys) >= maxFlawed
	if !logged {
		f.keys[key] = true
	}
	f.mu.Unlock()
	if !logged {
		f.log.Warn(msg, append([]any{"key", strconv.QuoteToASCII(key)}, attributes...)...)
	}
}
