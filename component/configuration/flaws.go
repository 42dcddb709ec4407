package configuration

import (
	"log/slog"
	"strconv"
	"sync"
)

// maxFlawed is the maximum number of keys that a Flaws logs.
const maxFlawed = 100

// Flaws logs warnings about items that a store cannot deliver unchanged. It logs each key at most once, because a
// subscription reads its items again and again. Use NewFlaws to create one. It is safe for concurrent use.
type Flaws struct {
	log  *slog.Logger
	mu   sync.Mutex
	keys map[string]bool // keys that were logged
}

// NewFlaws returns a Flaws that has logged nothing.
func NewFlaws(log *slog.Logger) *Flaws { return &Flaws{log: log, keys: map[string]bool{}} }

// Warn logs msg about a key, with further attributes. It does nothing if the key was logged before, or if maxFlawed
// keys were logged.
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
