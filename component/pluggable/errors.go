package pluggable

import (
	"context"
	"strings"
	"sync/atomic"
	"unicode"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

// failure is the error of a call.
type failure struct {
	err   error // status of gRPC, or a fault if there is no connection
	sent  bool  // the process may have received the request
	begun bool  // the answer of the process had a header
	ended error // error of the context; nil = the context had not ended
}

// code returns the gRPC status code with which a call failed. It returns codes.OK if the call succeeded, or if it
// failed because there was no connection or the context had ended.
func (f *failure) code() codes.Code {
	if f == nil || f.ended != nil {
		return codes.OK
	}
	if _, ours := fault.As(f.err); ours {
		return codes.OK
	}
	return status.Code(f.err)
}

// trace records what happened to a call.
type trace struct {
	sent  atomic.Bool
	begun atomic.Bool
}

type traceKey struct{}

// traces is a stats.Handler that fills the trace in the context of a call.
type traces struct{}

// TagRPC implements stats.Handler.
func (traces) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (traces) HandleRPC(ctx context.Context, s stats.RPCStats) {
	t, ok := ctx.Value(traceKey{}).(*trace)
	if !ok {
		return
	}
	switch s.(type) {
	case *stats.OutPayload:
		t.sent.Store(true)
	case *stats.InHeader:
		t.begun.Store(true)
	}
}

// TagConn implements stats.Handler.
func (traces) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (traces) HandleConn(context.Context, stats.ConnStats) {}

// verb is the kind of a call.
type verb uint8

const (
	reading verb = iota
	writing      // without an answer, the outcome is unknown
)

// fault converts the error of a call to a *fault.Error. If a write was sent and the process did not refuse it (see
// refused), the code is fault.Indeterminate, because the process may have executed the write.
func (l *link) fault(op, key string, f *failure, doing verb) error {
	if e, ours := fault.As(f.err); ours {
		return &fault.Error{Code: e.Code, Op: op, Key: key, Err: f.err}
	}
	e := &fault.Error{Op: op, Key: key, Msg: l.who() + " answered with an error: " + l.text(f.err)}
	if f.ended != nil || status.Code(f.err) == codes.DeadlineExceeded {
		e.Msg = l.who() + " did not answer in time"
	}
	switch code := status.Code(f.err); {
	case l.isClosed() && !(doing == writing && f.sent):
		return errClosed(op)
	case !f.sent && code == codes.Internal: // gRPC could not encode the request
		e.Code, e.Msg = fault.Invalid, "the request cannot be sent to the component: "+l.text(f.err)
		e.Hint = "use only UTF-8 in keys and metadata"
	case f.ended == nil && l.refused(e, f, code):
	case doing == writing && f.sent: // also if only the answer was too large
		e.Code = fault.Indeterminate
		e.Msg += "; the write may have been applied"
		e.Hint = "read the key before you write it again, and look at the log of the component"
	case f.ended == nil && code == codes.ResourceExhausted: // gRPC stopped reading a large answer
		e.Code, e.Msg = fault.TooLarge, "the answer of "+l.who()+" is larger than the limit"
		e.Hint = "raise --max-body-size, or request less at once"
	case f.ended != nil, code == codes.DeadlineExceeded:
		e.Code, e.Hint = fault.Timeout, "look at its log and its load"
	default:
		e.Code, e.Hint = fault.Unavailable, "look at the log of the component"
	}
	return e
}

// refused reports whether a status code means that the process refused the request. If so, it sets the code of e, and
// for some status codes also the hint.
func (l *link) refused(e *fault.Error, f *failure, code codes.Code) bool {
	switch code {
	case codes.InvalidArgument, codes.OutOfRange:
		e.Code = fault.Invalid
	case codes.NotFound:
		e.Code = fault.NotFound
	case codes.AlreadyExists:
		e.Code = fault.Conflict
	case codes.FailedPrecondition:
		e.Code = fault.Internal
	case codes.PermissionDenied, codes.Unauthenticated:
		e.Code, e.Hint = fault.Denied, "check the credentials in the metadata of the component"
	case codes.Unimplemented:
		e.Code = fault.Unimplemented
	case codes.ResourceExhausted:
		if f.begun { // the process answered, and gRPC stopped reading
			return false
		}
		e.Code = fault.Overloaded
	default:
		return false
	}
	return true
}

// uninitialised converts the error of Init, or of another call in the initialisation of a process, to a *fault.Error.
func (l *link) uninitialised(ctx context.Context, err error) error {
	e := &fault.Error{Code: fault.Internal, Op: "pluggable.Init",
		Msg: l.who() + " could not be initialised: " + l.text(err), Hint: "look at its log, and check the metadata"}
	code := status.Code(err)
	switch {
	case ctx.Err() != nil || code == codes.DeadlineExceeded:
		e.Code = fault.Timeout
	case code == codes.Unavailable:
		e.Code = fault.Unavailable
	case code == codes.InvalidArgument:
		e.Code = fault.Invalid
	case code == codes.PermissionDenied || code == codes.Unauthenticated:
		e.Code = fault.Denied
	}
	return e
}

// text returns the code and the message of an error of gRPC.
func (l *link) text(err error) string {
	s := status.Convert(err)
	return s.Code().String() + ": " + l.clean(s.Message())
}

// clean makes a text from the process safe for messages. It shortens the text and hides the values of references,
// because a process may quote its metadata with secrets.
func (l *link) clean(text string) string {
	return shorten(component.Hide(text, l.options.Metadata.Sensitive()))
}

// shorten limits the length of a text from the process, and replaces unprintable characters with spaces.
func shorten(text string) string {
	const limit = 300
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, fault.Shorten(text, limit))
}

// isETagError reports whether a write failed because of its ETag. As in Dapr's protocol, such an error has a detail
// about the field "etag". Its status code is FailedPrecondition if the ETag does not match, and InvalidArgument if the
// ETag is malformed.
func isETagError(f *failure) bool {
	if code := f.code(); code != codes.FailedPrecondition && code != codes.InvalidArgument {
		return false
	}
	for _, detail := range status.Convert(f.err).Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				if v.GetField() == "etag" {
					return true
				}
			}
		}
	}
	return false
}
