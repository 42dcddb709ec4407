package membership

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// calm stands before the log of memberlist, which calls errors what it will try again, and
// repeats itself for every packet of a stranger. Errors become warnings; beyond a number of
// them a minute, they become debug records, as does what comes of a list of seeds that all
// nodes have alike. What an operator has to know, this package logs itself.
type calm struct {
	next   slog.Handler
	budget *budget
}

// warningsAMinute is how many warnings of memberlist are let through.
const warningsAMinute = 10

func newCalm(next slog.Handler) calm { return calm{next: next, budget: &budget{}} }

// Enabled implements slog.Handler.
func (c calm) Enabled(ctx context.Context, l slog.Level) bool {
	return c.next.Enabled(ctx, min(l, slog.LevelWarn))
}

// Handle implements slog.Handler.
func (c calm) Handle(ctx context.Context, r slog.Record) error {
	r.Level = min(r.Level, slog.LevelWarn)
	if r.Level == slog.LevelWarn && (strings.Contains(r.Message, ownSeed) || !c.budget.spend(r.Time)) {
		r.Level = slog.LevelDebug
		if !c.next.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return c.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (c calm) WithAttrs(a []slog.Attr) slog.Handler { return calm{c.next.WithAttrs(a), c.budget} }

// WithGroup implements slog.Handler.
func (c calm) WithGroup(name string) slog.Handler { return calm{c.next.WithGroup(name), c.budget} }

// budget counts warnings of the current minute.
type budget struct {
	mu    sync.Mutex
	since time.Time
	spent int
}

func (b *budget) spend(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.since) >= time.Minute {
		b.since, b.spent = now, 0
	}
	b.spent++
	return b.spent <= warningsAMinute
}
