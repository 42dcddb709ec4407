package membership

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"
)

// logLimiter lowers the levels of memberlist's log messages, because this package logs the problems itself:
//
//   - Errors become warnings, because memberlist retries.
//   - Messages at level info get level debug.
//   - Expected warnings get level debug (see expected).
//   - A warning that is repeated within a minute gets level debug.
//   - After warningsAMinute different warnings in a minute, further ones get level debug.
type logLimiter struct {
	wrapped slog.Handler
	budget  *budget
}

// warningsAMinute is how many warnings of memberlist are logged per minute.
const warningsAMinute = 10

func newLogLimiter(wrapped slog.Handler) logLimiter {
	return logLimiter{wrapped: wrapped, budget: &budget{}}
}

// Enabled implements slog.Handler.
func (c logLimiter) Enabled(ctx context.Context, l slog.Level) bool {
	return c.wrapped.Enabled(ctx, min(l, slog.LevelWarn))
}

// Handle implements slog.Handler.
func (c logLimiter) Handle(ctx context.Context, r slog.Record) error {
	r.Level = min(r.Level, slog.LevelWarn)
	if r.Level == slog.LevelInfo { // this package logs changes of members itself
		if r.Level = slog.LevelDebug; !c.wrapped.Enabled(ctx, r.Level) {
			return nil
		}
	}
	if r.Level == slog.LevelWarn && (expected(r.Message) || !c.budget.spend(r.Time, r.Message)) {
		r.Level = slog.LevelDebug
		if !c.wrapped.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return c.wrapped.Handle(ctx, r)
}

// expected reports whether a warning of memberlist is part of normal operation:
//
//   - A seed is this node itself.
//   - Memberlist used a socket that this node had just closed.
//   - A ping was meant for another node, or for an earlier incarnation of this node.
//   - A stream ended before its first byte.
//   - A probed node closed the stream, because it is stopping or not in the cluster yet.
func expected(msg string) bool {
	return strings.Contains(msg, ownSeed) || strings.Contains(msg, net.ErrClosed.Error()) ||
		strings.Contains(msg, "Got ping for unexpected node") ||
		strings.Contains(msg, `discarding stream with unacceptable label ""`) ||
		strings.HasSuffix(msg, "Failed fallback TCP ping: EOF")
}

// WithAttrs implements slog.Handler.
func (c logLimiter) WithAttrs(a []slog.Attr) slog.Handler {
	return logLimiter{c.wrapped.WithAttrs(a), c.budget}
}

// WithGroup implements slog.Handler.
func (c logLimiter) WithGroup(name string) slog.Handler {
	return logLimiter{c.wrapped.WithGroup(name), c.budget}
}

// budget decides which warnings of the current minute are logged.
type budget struct {
	mu     sync.Mutex
	since  time.Time
	logged map[string]bool // messages of this minute, at most warningsAMinute
}

// spend reports whether a warning is to be logged. If so, it counts the warning.
func (b *budget) spend(now time.Time, msg string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.logged == nil || now.Sub(b.since) >= time.Minute {
		b.since, b.logged = now, map[string]bool{}
	}
	if b.logged[msg] || len(b.logged) == warningsAMinute {
		return false
	}
	b.logged[msg] = true
	return true
}
