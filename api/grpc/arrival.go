package grpc

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"
)

// arrival is the context of a call whose header has come. A call of one message must bring
// it within the request time-out: the library starts a goroutine for each call, and would
// wait for the message for as long as the client stays.
type arrival struct {
	context.Context
	refused error       // why the call may not pass; nil = it may
	timer   *time.Timer // nil for calls of many messages, which last as long as they like
	late    atomic.Bool
}

// Err tells a client that took too long from one that went.
func (a *arrival) Err() error {
	err := a.Context.Err()
	if err != nil && a.late.Load() {
		return context.DeadlineExceeded
	}
	return err
}

type arrivalKey struct{}

// Value finds the arrival itself among the values of its context.
func (a *arrival) Value(key any) any {
	if key == (arrivalKey{}) {
		return a
	}
	return a.Context.Value(key)
}

// arrived ends the wait for the message of a call, and says why the call may not pass.
func arrived(ctx context.Context) error {
	a, ok := ctx.Value(arrivalKey{}).(*arrival)
	if !ok {
		return nil
	}
	if a.timer != nil {
		a.timer.Stop()
	}
	return a.refused
}

// arrive sees every call before its first message, in the goroutine that reads the
// connection. Who has no token is sent away here, so that nothing of a message is kept for
// them.
func (s *Server) arrive(ctx context.Context, info *tap.Info) (context.Context, error) {
	a := &arrival{Context: ctx}
	if err := s.check(info.Header, info.FullMethodName); err != nil {
		s.away.Note(s.log, remote(ctx), s.metrics.label(info.FullMethodName), err)
		err = s.answer(info.FullMethodName, err)
		if s.soonOver(ctx) {
			s.metrics.refuse(info.FullMethodName, codes.Unauthenticated)
			return ctx, err
		}
		a.refused = err
	}
	if s.metrics.brief(info.FullMethodName) {
		var cancel context.CancelFunc
		a.Context, cancel = context.WithCancel(ctx)
		a.timer = time.AfterFunc(s.timeout, func() { s.tooLate(a, info.FullMethodName, cancel) })
	}
	return a, nil
}

// soonOver reports whether a call that is turned away here leaves nothing behind for long:
// the library forgets to end its context, and with it the timer of its time-out.
func (s *Server) soonOver(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return !ok || time.Until(end) <= s.timeout
}

// tooLate ends a call that has not brought its message.
func (s *Server) tooLate(a *arrival, method string, cancel context.CancelFunc) {
	if a.Context.Err() == nil {
		a.late.Store(true)
		s.metrics.refuse(method, codes.DeadlineExceeded)
	}
	cancel()
}

func remote(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}
