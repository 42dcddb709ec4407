// Package atmostonce sends an HTTP request at most once. If the request fails, the package reports whether any part of
// it may have left this process. It also limits the heads of answers, and refuses an answer that does not fit its
// request.
//
// net/http alone may send a request twice: if an idle connection turns out to be closed, or if an HTTP/2 server resets
// the stream. The server may already have executed the request. This package prevents both repetitions. It also does
// not use an idle connection that the other side has closed.
//
// The package owns these rules. It also has a client for HTTP/1.1 without TLS that applies them at lower cost than
// http.Transport. It has no goroutines, except those of Client.
package atmostonce

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"reflect"
	"sync"
	"sync/atomic"
)

// ErrRepeat is the error of a request that net/http was about to repeat.
var ErrRepeat = errors.New("the connection was closed before an answer came")

// RoundTrip sends r over t. The caller must have prepared t with the function Transport. If RoundTrip fails, wasSent
// reports whether the server may have received any byte of r. The error is a *BadAnswer if the answer does not fit r or
// exceeds a limit. The httptrace hooks in the context of r are called too.
func RoundTrip(t *http.Transport, r *http.Request, l Limits) (answer *http.Response, wasSent bool, err error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	s := &sending{cancel: cancel, request: r, limits: l, maxBytes: t.MaxResponseHeaderBytes}
	s.hooks = httptrace.ClientTrace{GotConn: s.gotConn, WroteHeaderField: s.writesHeaders,
		Got1xxResponse: s.gotInformational, GotFirstResponseByte: func() { s.answering.Store(true) }}
	answer, err = t.RoundTrip(r.WithContext(httptrace.WithClientTrace(ctx, &s.hooks)))
	s.finish()
	if err == nil {
		if err = s.accept(answer); err == nil {
			return answer, true, nil // no cancel: the body needs the context, which ends with its parent
		}
		_ = answer.Body.Close() // the error of Close does not matter
		s.discard()
		wasSent = true
	} else {
		wasSent = s.began(r.Context())
		err = s.explain(ctx, err)
	}
	s.release()
	cancel(nil)
	return nil, wasSent, err
}

// sending tracks one request.
type sending struct {
	hooks    httptrace.ClientTrace
	cancel   context.CancelCauseFunc
	request  *http.Request
	limits   Limits
	maxBytes int64

	headers   atomic.Bool // a header was written to the buffer of a connection, and may have been sent
	answering atomic.Bool // a head has arrived

	// delivery is held while an informational answer is passed to its receiver. net/http may call the hook after
	// RoundTrip has returned. The receiver may then no longer exist.
	delivery sync.Mutex
	finished bool // guarded by delivery

	mu       sync.Mutex // guards what follows
	conn     *counted   // nil before there is one, and over HTTP/2, where requests share a connection
	before   int64      // bytes that earlier requests have written on conn
	shared   bool
	heads    *heads // heads of the answers on the connection; nil = they are not checked
	on       *watch // passes the received bytes to heads
	informed int    // fields of the informational answers, if heads is nil
}

func (s *sending) gotConn(info httptrace.GotConnInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shared && s.headers.Load() {
		// After some errors of a stream or a connection, net/http repeats a request over HTTP/2. A server may send
		// PROTOCOL_ERROR after it has executed the request. The hook does not learn which error it was.
		s.cancel(ErrRepeat)
		return
	}
	if s.conn != nil && s.conn.written.Load() > s.before {
		s.cancel(ErrRepeat)
		_ = info.Conn.Close() // nothing has been written on this new connection
		return
	}
	s.heads.release()
	s.heads = nil
	s.conn, s.on, s.shared = unwrap(info.Conn)
	if s.conn != nil {
		s.before = s.conn.written.Load()
		s.conn.mark.Store(s.before)
		if info.Reused && (s.conn.spoilt.Load() || ended(s.conn.Conn)) {
			_ = info.Conn.Close()         // nothing must be written on this connection
			s.conn, s.shared = nil, false // the TLS close_notify that Close writes is not part of the request
			return
		}
	}
	if s.on != nil {
		s.heads = new(heads)
		s.heads.begin(s.request.Context(), s.limits, s.maxBytes)
		s.on.heads.Store(s.heads)
	}
}

// writesHeaders records that a part of the request may have been sent. It is the hook WroteHeaderField, which net/http
// calls before it sends a header. The hook WroteHeaders would be too late: it may be called after the answer has
// arrived.
func (s *sending) writesHeaders(string, []string) { s.headers.Store(true) }

// gotInformational passes an informational answer to the function that WithInformational has set. It first checks the
// limits.
func (s *sending) gotInformational(code int, header textproto.MIMEHeader) error {
	s.delivery.Lock()
	defer s.delivery.Unlock()
	if s.finished {
		return errOver
	}
	err := s.admitInformational(http.Header(header))
	if err == nil {
		err = informational(s.request.Context(), code, http.Header(header))
	}
	if err != nil {
		s.cancel(err) // net/http may see only the error of another hook in the context of the caller
	}
	return err
}

func (s *sending) admitInformational(header http.Header) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heads != nil {
		h, err := s.heads.next()
		if err == nil {
			h.restore(header)
		}
		return err
	}
	n, _ := measure(header)
	s.informed += n + 1
	if limit := s.limits.fields(); s.informed > limit {
		return tooManyFields(limit)
	}
	return nil
}

// finish ends the delivery of informational answers.
func (s *sending) finish() {
	s.delivery.Lock()
	defer s.delivery.Unlock()
	s.finished = true
}

// accept checks an answer. It also wraps the body of the answer, so that the memory of the head is released when the
// caller has read or closed the body.
func (s *sending) accept(a *http.Response) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	release := s.heads.release
	if s.heads != nil {
		h, err := s.heads.next()
		if err != nil {
			return err
		}
		s.on.heads.CompareAndSwap(s.heads, nil) // another request may use the connection already
		h.restore(a.Header)
		if h.length && h.coding {
			s.conn.spoilt.Store(true)
		}
	} else {
		var err error
		l := s.limits
		l.Fields = max(l.fields()-s.informed, 1)
		release, err = l.Admit(s.request.Context(), a.Header, a.Trailer)
		if err != nil {
			return err
		}
	}
	if err := check(s.request, a); err != nil {
		release()
		return err
	}
	if a.Body == http.NoBody {
		release()
		return nil
	}
	body := &body{ReadCloser: a.Body, answer: a, limit: s.limits.fields(), release: release}
	if w, ok := a.Body.(interface{ Write([]byte) (int, error) }); ok {
		a.Body = &writableBody{body, w}
	} else {
		a.Body = body
	}
	return nil
}

// discard closes the connection of a refused answer, unless other requests share it.
func (s *sending) discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = s.conn.Close() // the error of Close does not matter
	}
}

func (s *sending) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heads.release()
}

// explain returns why the request failed. err is the error of net/http.
func (s *sending) explain(ctx context.Context, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.request.Context().Err() != nil {
		return err
	}
	if refused := s.heads.failure(); refused != nil {
		return refused
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	switch {
	case !s.shared:
		return err
	case isViolation(err):
		return bad("the server breaks the rules of HTTP/2, or sends headers far longer than %d bytes: %v", s.maxBytes,
			err)
	// Over HTTP/2, net/http refuses a head that is malformed or too long after it has arrived as a whole.
	case s.answering.Load() && s.informed == 0:
		return bad("the headers of the answer cannot be read: %v", err)
	}
	return err
}

// isViolation reports whether net/http closed an HTTP/2 connection because of what the server sent, for example a head
// of twice the limit. net/http does not export the type of this error. isViolation recognizes it by its kind, uint32,
// which no other error of a connection has.
func isViolation(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if reflect.TypeOf(err).Kind() == reflect.Uint32 {
			return true
		}
	}
	return false
}

// began reports whether any part of the request may have been sent. If ctx has ended and the request has its own
// connection, as over HTTP/1, the result is true, because net/http may still be writing.
func (s *sending) began(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.conn == nil:
		return s.shared && s.headers.Load()
	case ctx.Err() != nil:
		return true
	}
	return s.headers.Load() && s.conn.written.Load() > s.before
}
