package grpc

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/quorate/quorate/internal/admission"
)

// arrival is the context of a call. For a unary call, the context ends if the message does not arrive within the
// request timeout. Without this limit, a client that sends no message would occupy a goroutine until the client
// disconnects.
type arrival struct {
	context.Context
	refused error              // the error to answer the call with; nil = the call is not refused
	cancel  context.CancelFunc // ends the call, also while it waits for a message; nil for refused calls
	timer   *time.Timer        // nil for streaming calls, which have no time limit
	late    atomic.Bool
	answer  admission.Share // memory for the answer, reserved before the answer is encoded; see held
}

// Err returns context.DeadlineExceeded if the message did not arrive in time. Otherwise it returns the error of the
// parent context.
func (a *arrival) Err() error {
	err := a.Context.Err()
	if err != nil && a.late.Load() {
		return context.DeadlineExceeded
	}
	return err
}

type arrivalKey struct{}

// Value implements context.Context. For arrivalKey, it returns the arrival, so that arrivalOf finds it in derived
// contexts. For other keys, it returns the value of the parent context.
func (a *arrival) Value(key any) any {
	if key == (arrivalKey{}) {
		return a
	}
	return a.Context.Value(key)
}

func arrivalOf(ctx context.Context) *arrival {
	a, _ := ctx.Value(arrivalKey{}).(*arrival)
	return a
}

// arrived stops the timer that limits how long the server waits for a call's message. If the call was refused when it
// arrived, the result is the error of the refusal.
func arrived(ctx context.Context) error {
	a := arrivalOf(ctx)
	if a == nil {
		return nil
	}
	if a.timer != nil {
		a.timer.Stop()
	}
	return a.refused
}

// arrive checks the token of a call before its first message is read. If the token is valid or not needed, the returned
// context is an arrival. For a unary call, the time limit for the message starts now. grpc-go calls arrive in the
// goroutine that reads the connection, so arrive must not block.
func (s *Server) arrive(ctx context.Context, info *tap.Info) (context.Context, error) {
	if err := s.check(info.Header, info.FullMethodName); err != nil {
		s.away.Note(s.log, remote(ctx), s.metrics.label(info.FullMethodName), err)
		return s.refuse(ctx, info.FullMethodName, s.answer(info.FullMethodName, err))
	}
	a := &arrival{}
	a.Context, a.cancel = context.WithCancel(ctx)
	if s.metrics.brief(info.FullMethodName) {
		a.timer = time.AfterFunc(s.timeout, func() { s.tooLate(a, info.FullMethodName) })
	}
	return a, nil
}

// refuse refuses a call with err before its message is read. Normally it returns err to grpc-go, which then keeps a
// timer in memory until the deadline of the call. If the deadline is later than the request timeout, many such timers
// could fill the memory. In this case, refuse returns no error. It pauses the connection, and returns a context that
// makes the server answer the call with err.
func (s *Server) refuse(ctx context.Context, method string, err error) (context.Context, error) {
	c := connOf(ctx)
	if end, ok := ctx.Deadline(); !ok || time.Until(end) <= s.timeout || c == nil {
		s.metrics.refuse(method, codes.Unauthenticated)
		return ctx, err
	}
	c.pause()
	context.AfterFunc(ctx, c.resume)
	return &arrival{Context: ctx, refused: err}, nil
}

// tooLate ends a call whose message did not arrive in time.
func (s *Server) tooLate(a *arrival, method string) {
	if a.Context.Err() == nil {
		a.late.Store(true)
		s.metrics.refuse(method, codes.DeadlineExceeded)
	}
	a.cancel()
}

func remote(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}
