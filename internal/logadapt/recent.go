package logadapt

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// Recent keeps the last records of a log in memory. It is safe for concurrent use.
type Recent struct {
	level slog.Level
	keep  int

	mu     sync.Mutex
	ring   []RecentRecord // guarded by mu; at most keep records, overwritten in turn
	oldest int            // index in ring; guarded by mu
}

// RecentRecord is one record of a log.
type RecentRecord struct {
	Time  time.Time
	Level slog.Level
	Text  string // message and attributes, at most maxRecent bytes
}

// maxRecent bounds the text of a record that is kept, in bytes.
const maxRecent = 1 << 10

// NewRecent returns a Recent for log records of the given level or higher. It keeps the newest of them, at most the
// given number, and at most about 1 KiB of each.
func NewRecent(level slog.Level, keep int) *Recent { return &Recent{level: level, keep: keep} }

// Records returns the records that are kept, newest first.
func (r *Recent) Records() []RecentRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Concat(r.ring[r.oldest:], r.ring[:r.oldest])
	slices.Reverse(out)
	return out
}

func (r *Recent) add(one RecentRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ring) < r.keep {
		r.ring = append(r.ring, one)
		return
	}
	r.ring[r.oldest] = one
	r.oldest = (r.oldest + 1) % r.keep
}

// Handler returns a handler that passes all records to wrapped, and keeps a copy of some of them in r. A record is kept
// if its level is enabled in wrapped and is not below the level of r.
func (r *Recent) Handler(wrapped slog.Handler) slog.Handler {
	return recentHandler{recent: r, wrapped: wrapped}
}

type recentHandler struct {
	recent  *Recent
	wrapped slog.Handler
	attrs   string // as text
	group   string // prefix of the names of attributes
}

// Enabled implements slog.Handler.
func (h recentHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.wrapped.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h recentHandler) Handle(ctx context.Context, rec slog.Record) error {
	if rec.Level >= h.recent.level {
		var b strings.Builder
		b.WriteString(rec.Message + h.attrs)
		rec.Attrs(func(a slog.Attr) bool {
			b.WriteString(h.text(a))
			return b.Len() < maxRecent
		})
		text := b.String()
		if len(text) > maxRecent {
			text = strings.ToValidUTF8(text[:maxRecent], "") + "…"
		}
		h.recent.add(RecentRecord{rec.Time, rec.Level, text})
	}
	return h.wrapped.Handle(ctx, rec)
}

func (h recentHandler) text(a slog.Attr) string {
	if a.Equal(slog.Attr{}) {
		return ""
	}
	return " " + h.group + a.Key + "=" + a.Value.Resolve().String()
}

// WithAttrs implements slog.Handler.
func (h recentHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		h.attrs += h.text(a)
	}
	h.wrapped = h.wrapped.WithAttrs(attrs)
	return h
}

// WithGroup implements slog.Handler.
func (h recentHandler) WithGroup(name string) slog.Handler {
	if name != "" {
		h.group += name + "."
	}
	h.wrapped = h.wrapped.WithGroup(name)
	return h
}
