package command

import (
	"fmt"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Limits are the maximum sizes in bytes of the parts of an operation. Zero means no limit.
type Limits struct {
	Key         int // stored key
	Value       int
	ContentType int
}

// Validate returns fault.Invalid if o is malformed, and fault.TooLarge if o exceeds one of the given limits. The
// message of fault.TooLarge names the limit.
func (o *Op) Validate(l Limits) error {
	if err := o.check(); err != nil {
		return err
	}
	for _, b := range [...]struct {
		what      string
		have, max int
	}{
		{"key", len(o.Key), l.Key},
		{"value", len(o.Value), l.Value},
		{"content type", len(o.ContentType), l.ContentType},
	} {
		if b.max > 0 && b.have > b.max {
			msg := fmt.Sprintf("%s of %d bytes, the limit is %d", b.what, b.have, b.max)
			return &fault.Error{Code: fault.TooLarge, Op: "command.Validate", Msg: msg,
				Key: fault.Shorten(o.Key, 128)}
		}
	}
	return nil
}

// check returns fault.Invalid if Decode would refuse o, and otherwise nil.
func (o *Op) check() error {
	set := o.Stores()
	switch {
	case !set && o.Kind != OpDelete && o.Kind != OpCheck:
		return o.invalid(fmt.Sprintf("unknown kind %d of operation", o.Kind))
	case o.Cond > CondNever:
		return o.invalid(fmt.Sprintf("unknown condition %d", o.Cond))
	case o.Revision != 0 && o.Cond != CondRevision:
		return o.invalid("a revision without the condition that needs it")
	case o.Kind == OpCheck && o.Cond == CondNone:
		return o.invalid("a check without a condition")
	case o.Kind == OpAppend && o.Cond != CondNone:
		return o.invalid("an append with a condition")
	case o.Store == "":
		return o.invalid("no store")
	case strings.IndexByte(o.Store, 0) >= 0:
		return o.invalid("NUL in the name of the store")
	case o.Key == "":
		return o.invalid("empty key")
	case !set && (len(o.Value) > 0 || o.ContentType != "" || o.TTL != 0 || o.ExpireAt != 0):
		return o.invalid("a delete or check carries no value, content type or expiry")
	}
	return nil
}

func (o *Op) invalid(msg string) error {
	return &fault.Error{Code: fault.Invalid, Op: "command.Validate", Msg: msg, Key: o.Key}
}

// check returns fault.Invalid if Decode would refuse r, and otherwise nil.
func (r *Request) check() error {
	if msg := r.problem(); msg != "" {
		return fault.New(fault.Invalid, "command.Validate", msg)
	}
	for i := range r.Ops {
		if err := r.Ops[i].check(); err != nil {
			return err
		}
	}
	return nil
}

// problem returns what is wrong with r apart from its operations, or "".
func (r *Request) problem() string {
	switch {
	case r.Kind < KindWrite || r.Kind > KindWatch:
		return fmt.Sprintf("unknown kind %d of request", r.Kind)
	case (r.Kind == KindWatch) != (r.Watch != nil):
		return "the bounds of a history belong to their kind, and to nothing else"
	case r.Kind == KindWatch:
		return r.watchProblem()
	case (r.Kind == KindRestore) != (r.Restore != nil):
		return "a step of a restore belongs to its kind, and to nothing else"
	case r.Kind == KindRestore:
		return r.restoreProblem()
	case r.Kind != KindWrite && len(r.Ops) > 0:
		return "only a write carries operations"
	case (r.Kind == KindRegister) != (r.Name != ""):
		return "a name belongs to a registration, and to nothing else"
	case r.Kind == KindFormat:
		return r.formatProblem()
	case r.Kind != KindExpire && r.Limit != 0:
		return "only an expiry carries a limit"
	case r.Kind != KindWrite && r.Client.ID != "":
		return "only a write carries a client id"
	case r.Client.ID == "" && r.Client.Scope != "":
		return "a scope without a client id"
	case !r.ID.valid():
		return "request id: sequence numbers count from 1, and done stays below them"
	}
	return ""
}

// valid reports whether id is valid. A valid id either is zero, or has an origin and a Seq above Done.
func (id RequestID) valid() bool {
	if id.Origin == 0 {
		return id == (RequestID{})
	}
	return id.Done < id.Seq
}
