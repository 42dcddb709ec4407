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
	// AnswerSession returns a token that covers everything that own covers, and everything that an answer of a store
	// has shown. sent is the token in the request, and got is the token in the answer. Positions of sent that the
	// answer has settled, because it reports that their writes were lost, are removed from own. The part of got that
	// comes from sent is not trusted, because clients send it. AnswerSession returns false if own or got cannot be
	// read.
	AnswerSession(own, sent, got string) (string, bool)
	// ShareSession returns the part of token to send to a client or to another application. sent is the token that the
	// receiver has sent, or empty. The result covers everything that token covers, except for writes that may be lost
	// and that the receiver does not know.
	ShareSession(token, sent string) string
	// VerifySession returns a token that covers everything that own covers, and the positions in given that exist.
	// given is the token of a client. VerifySession returns fault.Unavailable if the check does not end in time.
	VerifySession(ctx context.Context, own, given string) (string, error)
}

// Sessions holds the session tokens of the applications of this node. With them, an application sees the writes of the
// applications that it calls and of those that call it, without changes to its code.
//
// Each application has a general session for everything that it reads, writes and receives in calls. An incoming call
// with a trace id also starts a session for that trace. Requests with this trace id wait only for the writes in the
// session of the trace, so other calls do not delay them.
//
// Clients can send invented tokens. Therefore a session contains only positions that come from stores or other nodes,
// or that Verify has checked. Sessions are safe for concurrent use.
type Sessions struct {
	merger SessionMerger

	mu   sync.Mutex // guards what follows
	apps map[App]*seenBy
}

// maxTraces is the maximum number of trace sessions of an application. Above this number, the oldest trace session is
// dropped. Requests of that trace then use the general session of the application, which covers the dropped one.
const maxTraces = 4096

type seenBy struct {
	token  string
	traces map[string]*list.Element
	order  list.List // elements are *traced, the oldest first
}

type traced struct{ id, token string }

// NewSessions returns empty Sessions. If m is nil, nothing is remembered.
func NewSessions(m SessionMerger) *Sessions {
	return &Sessions{merger: m, apps: map[App]*seenBy{}}
}

// Begin returns the session token that a request of app carries to a store. It merges the token in the request, which
// may be empty, with the session of app for the trace. If the token in the request cannot be parsed, Begin returns it
// unchanged.
func (s *Sessions) Begin(app App, trace, requested string) string {
	return s.join(requested, s.Token(app, trace))
}

// Share returns the session token to send with a call by app to another application, or with the answer of app to a
// call. It merges the given token with the session of app for the trace. It leaves out what the receiver need not know
// (see SessionMerger.ShareSession).
//
// given is the token that came with the call, or empty. A token from a client must be verified first (see Verify).
func (s *Sessions) Share(app App, trace, given string) string {
	own := s.Token(app, trace)
	if own != "" {
		own = s.merger.ShareSession(own, "")
	}
	return s.join(given, own)
}

// Extend returns the session token for the answer to a client. It merges given, the token that the client sent, with
// got, the token of the answer. The client thus keeps positions that are missing in the answer. If got is empty or
// given cannot be parsed, Extend returns got.
func (s *Sessions) Extend(given, got string) string {
	if s == nil || s.merger == nil || given == "" || got == "" {
		return got
	}
	if merged, ok := s.merger.MergeSessions(given, got); ok {
		return merged
	}
	return got
}

// join merges the token received with the token own, which is a token of this node. If received cannot be parsed, join
// returns it unchanged.
func (s *Sessions) join(received, own string) string {
	if received == "" || own == "" {
		return received + own // at least one of the two is empty
	}
	if merged, ok := s.merger.MergeSessions(received, own); ok {
		return merged
	}
	return received
}

// End updates the sessions of app after a store has answered a request, and returns the session token for the client.
// If the answer reports that writes were lost, their positions are removed from the sessions, so that app gets this
// report only once.
//
// requested is the token in the request, begun is the result of Begin, and answered is the token in the answer.
func (s *Sessions) End(app App, trace, requested, begun, answered string) string {
	if s == nil || s.merger == nil || answered == "" {
		return answered
	}
	s.update(app, trace, func(token string) string { return s.advance(token, begun, answered) })
	if answered == requested {
		return answered
	}
	return s.merger.ShareSession(answered, requested)
}

// advance returns the new token of a session after a store has answered. token is the current token, begun is the
// result of Begin for the request, and answered is the token in the answer. If the session has not changed since Begin,
// the result is answered. Otherwise the result is token, merged with the answer.
func (s *Sessions) advance(token, begun, answered string) string {
	if token == begun || token == answered {
		return answered
	}
	return mergeInto(token, func(own string) (string, bool) { return s.merger.AnswerSession(own, begun, answered) })
}

// Shown returns the session token for what a store has shown in its answer. begun is the token in the request, and
// answered is the token in the answer. The result is answered without the positions of begun that this node cannot
// confirm, because they may be lost or invented.
func (s *Sessions) Shown(begun, answered string) string {
	if s == nil || s.merger == nil || begun == "" || answered == "" {
		return answered
	}
	shown, _ := s.merger.AnswerSession("", begun, answered)
	return shown
}

// mergeInto merges a received token into token, the token of a session. The function merge merges the received token
// into a given one, and returns false if a token cannot be parsed. If the token of the session cannot be parsed, the
// result is the received token. If the received token cannot be parsed, the result is the token of the session.
func mergeInto(token string, merge func(own string) (string, bool)) string {
	if merged, ok := merge(token); ok {
		return merged
	}
	if merged, ok := merge(""); ok {
		return merged
	}
	return token
}

// update replaces the token of the general session of app with the result of change. If app has a session for the
// trace, update also replaces the token of that session in the same way.
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

// Token returns the token of the session that app has for the trace. If there is no session for the trace, it returns
// the token of the general session of app. It returns "" if app has no session, or if sessions are disabled.
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

// Inbound merges a token from another node into the sessions of app. The token comes with a call to app, or with the
// answer to a call by app. Inbound ignores a token that cannot be read.
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

// Follow opens a session of app for the trace of an incoming call. The session begins with the given token. Follow does
// nothing if the trace already has a session, or if token is empty or cannot be parsed.
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
		return // End and Inbound update it
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

// Verify checks the session token that a client has sent in the header h of a call by app. It removes positions that do
// not exist in the store, because the called application would wait for them in vain. The result is merged with the
// session of app. Verify returns "" if h has no token, and fault.Unavailable if the check does not end in time.
func (s *Sessions) Verify(ctx context.Context, app App, trace string, h http.Header) (string, error) {
	given := h["Quorate-Session"]
	if s == nil || s.merger == nil || len(given) == 0 || given[0] == "" {
		return "", nil
	}
	return s.merger.VerifySession(ctx, s.Share(app, trace, ""), given[0])
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
