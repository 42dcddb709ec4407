package api

import (
	"container/list"
	"net/http"
	"strings"
	"sync"
)

// SessionMerger merges session tokens. Implementations are safe for concurrent use.
type SessionMerger interface {
	// MergeSessions returns a token that covers everything that a or b covers. It returns false if one of them cannot
	// be read. An empty token covers nothing.
	MergeSessions(a, b string) (string, bool)
}

// Sessions has the session tokens of the applications of this node. They make the writes of an application visible to
// the applications that it calls, without changes to their code.
//
// Each application has one session for everything that it reads, writes and receives in calls. A call with a trace id
// also starts a separate session for that trace. Requests with that trace id wait only for the writes in this
// session, so other calls do not delay them. Sessions are safe for concurrent use.
type Sessions struct {
	merger SessionMerger

	mu   sync.Mutex // guards what follows
	apps map[App]*seenBy
}

// maxTraces is the maximum number of trace sessions of an application. Above it, the session of the oldest trace is
// dropped. Requests of that trace then use the session of the application, which includes all of its writes.
const maxTraces = 4096

type seenBy struct {
	token  string
	traces map[string]*list.Element
	order  list.List // of *traced, the oldest first
}

type traced struct{ id, token string }

// NewSessions returns empty Sessions. If m is nil, nothing is remembered.
func NewSessions(m SessionMerger) *Sessions {
	return &Sessions{merger: m, apps: map[App]*seenBy{}}
}

// Begin returns the session token for a request of app to a store. The parameter given is the token in the request,
// or empty. Begin merges it with the session of app for the trace. If the token of the request cannot be parsed,
// Begin returns it unchanged.
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

// End records the token of a store's answer in the sessions of app. sent is the token that Begin returned for the
// request, and got is the token of the answer. Each session then has the token that advance returns.
func (s *Sessions) End(app App, trace, sent, got string) {
	if s == nil || s.merger == nil || got == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.of(app)
	b.token = s.advance(b.token, sent, got)
	if e := b.traces[trace]; e != nil {
		t := e.Value.(*traced)
		t.token = s.advance(t.token, sent, got)
	}
}

// advance returns the new token of a session. token is the present one, sent is the one in a request, and got is the
// one in the store's answer. If token is still the same as sent, advance returns got, in which the store may have
// removed outdated parts. Otherwise it returns token merged with got, or token if they cannot be merged.
func (s *Sessions) advance(token, sent, got string) string {
	if token == sent || token == got {
		return got
	}
	if merged, ok := s.merger.MergeSessions(token, got); ok {
		return merged
	}
	return token
}

// Token returns the session token of app for a trace, or the token of the application's session if the trace has
// none. It returns "" if app has no session, or sessions are disabled.
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

// Inbound merges token into the sessions of app. The token comes from a call that app has received, or from the answer
// to a call that app has made.
func (s *Sessions) Inbound(app App, trace, token string) {
	s.End(app, trace, "\x00", token) // "\x00" is never a token, so nothing is replaced
}

// Follow opens a session for the trace of an incoming call.
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

// of returns the sessions of app. The caller holds the mutex.
func (s *Sessions) of(app App) *seenBy {
	b := s.apps[app]
	if b == nil {
		b = &seenBy{}
		s.apps[app] = b
	}
	return b
}

// Outbound returns the session token for a call from app to another application. It is the session of app, merged
// with the token in the header h of the call.
func (s *Sessions) Outbound(app App, trace string, h http.Header) string {
	given := ""
	if v := h["Quorate-Session"]; len(v) > 0 {
		given = v[0]
	}
	return s.Begin(app, trace, given)
}

// TraceID returns the trace id of a W3C traceparent, or "" if the traceparent is invalid.
func TraceID(traceparent string) string {
	// version (2) - trace id (32) - parent id (16) - flags (2)
	if len(traceparent) < 55 || traceparent[2] != '-' || traceparent[35] != '-' || traceparent[52] != '-' ||
		traceparent[:2] == "ff" {
		return ""
	}
	id := traceparent[3:35]
	if strings.Trim(id, "0123456789abcdef") != "" || strings.Trim(id, "0") == "" {
		return ""
	}
	return id
}
