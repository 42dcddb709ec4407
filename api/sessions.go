package api

import (
	"container/list"
	"net/http"
	"strings"
	"sync"
)

// SessionMerger joins session tokens. Implementations are safe for concurrent use.
type SessionMerger interface {
	// MergeSessions returns a token that has seen what either has seen; false if one of
	// them cannot be read here. Empty tokens have seen nothing.
	MergeSessions(a, b string) (string, bool)
}

// Sessions remember what the applications of this node have seen of the replicated stores,
// so that what one wrote is seen by those it calls, and those that call it, without any
// help of theirs.
//
// An application has a session of its own, which grows with everything it reads, writes and
// is told. A call that comes in with a trace id opens a session for that trace, too: requests
// that carry the id wait for that one only, which keeps one call's news from slowing down
// all others. Safe for concurrent use.
type Sessions struct {
	merger SessionMerger

	mu   sync.Mutex // guards what follows
	apps map[App]*seenBy
}

// maxTraces bounds the traces remembered for each application; the oldest goes first, and
// its requests fall back to the session of the application, which holds more.
const maxTraces = 4096

type seenBy struct {
	token  string
	traces map[string]*list.Element
	order  list.List // of *traced, the oldest first
}

type traced struct{ id, token string }

// NewSessions returns a memory without sessions. Without a merger nothing is remembered.
func NewSessions(m SessionMerger) *Sessions {
	return &Sessions{merger: m, apps: map[App]*seenBy{}}
}

// Begin returns the token that a request of app to a store is to carry: given is what the
// request brought itself. Nothing is remembered of a request that brings a token that
// cannot be read here.
func (s *Sessions) Begin(app App, trace, given string) string {
	own := s.Token(app, trace)
	if given == "" || own == "" || s == nil {
		return given + own // at most one is not empty
	}
	if merged, ok := s.merger.MergeSessions(given, own); ok {
		return merged
	}
	return given
}

// End notes the token that a store answered; asked is what Begin returned. A store may have
// taken something out of the token, which counts if nobody else was faster.
func (s *Sessions) End(app App, trace, asked, got string) {
	if s == nil || s.merger == nil || got == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.of(app)
	b.token = s.advance(b.token, asked, got)
	if e := b.traces[trace]; e != nil {
		t := e.Value.(*traced)
		t.token = s.advance(t.token, asked, got)
	}
}

// advance is the token after a store answered got to asked.
func (s *Sessions) advance(token, asked, got string) string {
	if token == asked || token == got {
		return got
	}
	if merged, ok := s.merger.MergeSessions(token, got); ok {
		return merged
	}
	return token
}

// Token is what app has seen, in a trace if that is known.
func (s *Sessions) Token(app App, trace string) string {
	if s == nil || s.merger == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.apps[app]
	if b == nil {
		return ""
	}
	if e := b.traces[trace]; e != nil {
		return e.Value.(*traced).token
	}
	return b.token
}

// Inbound notes what app was told by a call, or by the answer to one.
func (s *Sessions) Inbound(app App, trace, token string) {
	s.End(app, trace, "\x00", token) // no token: nothing is replaced
}

// Follow opens a session for a trace that a call brought in.
func (s *Sessions) Follow(app App, trace, token string) {
	if s == nil || s.merger == nil || trace == "" || token == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.of(app)
	if b.traces[trace] != nil {
		return // End has it
	}
	if b.traces == nil {
		b.traces = map[string]*list.Element{}
	}
	b.traces[trace] = b.order.PushBack(&traced{trace, token})
	if b.order.Len() > maxTraces {
		oldest := b.order.Remove(b.order.Front()).(*traced)
		delete(b.traces, oldest.id)
	}
}

// of returns what app has seen, under the mutex.
func (s *Sessions) of(app App) *seenBy {
	b := s.apps[app]
	if b == nil {
		b = &seenBy{}
		s.apps[app] = b
	}
	return b
}

// Outbound is the token that a call of app is to carry: what it has seen, and what the
// call's header says that it has.
func (s *Sessions) Outbound(app App, trace string, h http.Header) string {
	given := ""
	if v := h["Quorate-Session"]; len(v) > 0 {
		given = v[0]
	}
	return s.Begin(app, trace, given)
}

// TraceID is the trace id of a W3C traceparent; empty if there is none that is valid.
func TraceID(traceparent string) string {
	// version (2) - trace id (32) - parent id (16) - flags (2)
	if len(traceparent) < 55 || traceparent[2] != '-' || traceparent[35] != '-' || traceparent[52] != '-' || traceparent[:2] == "ff" {
		return ""
	}
	id := traceparent[3:35]
	if strings.Trim(id, "0123456789abcdef") != "" || strings.Trim(id, "0") == "" {
		return ""
	}
	return id
}
