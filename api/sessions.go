package api

import (
	"container/list"
	"context"
	"net/http"
	"strings"
	"sync"
)

// SessionMerger merges session tokens. An empty token covers nothing. Implementations are safe for concurrent use.
type SessionMerger interface {
	// MergeSessions returns a token that covers everything that a or b covers. It returns false if one of them cannot
	// be read.
	MergeSessions(a, b string) (string, bool)
	// AnswerSession returns a token that covers everything that own covers, and what an answer with the token got to a
	// request with the token sent has shown. The rest of got comes from the client and is not trusted. AnswerSession
	// returns false if own or got cannot be read.
	AnswerSession(own, sent, got string) (string, bool)
	// VerifySession returns a token that covers everything that own covers, and what exists of the token given of a
	// client. It returns fault.Unavailable if it cannot find out in time.
	VerifySession(ctx context.Context, own, given string) (string, error)
}

// Sessions has the session tokens of the applications of this node. They make the writes of an application visible to
// the applications that it calls, without changes to their code.
//
// Each application has one session for everything that it reads, writes and receives in calls. A call with a trace id
// also starts a separate session for that trace. Requests with that trace id wait only for the writes in this
// session, so other calls do not delay them. Sessions are safe for concurrent use.
//
// A client may have invented the token of its request. So a session contains only what answers of stores have shown,
// what was verified (see Verify), and what other nodes have sent.
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

// End records in the sessions of app what a store's answer has shown. sent is the token that Begin returned for the
// request, and got is the token of the answer. Each session then has the token that advance returns.
func (s *Sessions) End(app App, trace, sent, got string) {
	if s == nil || s.merger == nil || got == "" {
		return
	}
	s.update(app, trace, func(token string) string { return s.advance(token, sent, got) })
}

// advance returns the new token of a session. token is the present one, sent is the one in a request, and got is the
// one in the store's answer. If token is still the same as sent, advance returns got, in which the store may have
// removed outdated parts. Otherwise it adds to token what the answer has shown.
func (s *Sessions) advance(token, sent, got string) string {
	if token == sent || token == got {
		return got
	}
	return mergeInto(token, func(own string) (string, bool) { return s.merger.AnswerSession(own, sent, got) })
}

// mergeInto returns merge(token), the token of a session merged with another one. If the token of the session cannot be
// read, it is dropped. If the other one cannot be read, the session does not change.
func mergeInto(token string, merge func(own string) (string, bool)) string {
	if merged, ok := merge(token); ok {
		return merged
	}
	if merged, ok := merge(""); ok {
		return merged
	}
	return token
}

// update replaces the session of app, and the one for the trace if there is one, with the results of change.
func (s *Sessions) update(app App, trace string, change func(token string) string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.sessionsLocked(app)
	b.token = change(b.token)
	if e := b.traces[trace]; e != nil {
		t := e.Value.(*traced)
		t.token = change(t.token)
	}
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

// Inbound merges token into the sessions of app. The token comes from the node of another application, which has called
// app or answered a call of app. Inbound ignores a token that cannot be read.
func (s *Sessions) Inbound(app App, trace, token string) {
	if s == nil || s.merger == nil || token == "" {
		return
	}
	s.update(app, trace, func(own string) string {
		if own == token {
			return own
		}
		return mergeInto(own, func(own string) (string, bool) { return s.merger.MergeSessions(own, token) })
	})
}

// Follow opens a session for the trace of an incoming call. It ignores a token that cannot be read.
func (s *Sessions) Follow(app App, trace, token string) {
	if s == nil || s.merger == nil || trace == "" || token == "" {
		return
	}
	if _, ok := s.merger.MergeSessions("", token); !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.sessionsLocked(app)
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

// sessionsLocked returns the sessions of app. The caller holds the mutex.
func (s *Sessions) sessionsLocked(app App) *seenBy {
	b := s.apps[app]
	if b == nil {
		b = &seenBy{}
		s.apps[app] = b
	}
	return b
}

// Verify returns what exists of the session token in the header h of a call of app, merged with the session of app. It
// returns "" if h has no token. Without this check, a client could make the called application wait for positions that
// will never exist. Verify returns fault.Unavailable if it cannot find out in time.
func (s *Sessions) Verify(ctx context.Context, app App, trace string, h http.Header) (string, error) {
	given := h["Quorate-Session"]
	if s == nil || s.merger == nil || len(given) == 0 || given[0] == "" {
		return "", nil
	}
	return s.merger.VerifySession(ctx, s.Token(app, trace), given[0])
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
