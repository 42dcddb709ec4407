package loader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// unit is one component that is being opened.
type unit struct {
	spec          *component.Spec
	fields        []component.Field
	state         StateFactory
	secrets       SecretStoreFactory
	binding       BindingFactory
	filter        MiddlewareFactory
	lock          LockFactory
	configuration ConfigurationFactory
	pubsub        PubSubFactory
	values        component.Values       // result of the last check
	hidden        []string               // values from references; they must not appear in any text
	scope         *component.SecretScope // scope of a secret store; nil = no restriction
	outside       bool                   // its type is not built in: a process serves it
	actor         bool                   // has the actor state, even if its metadata does not request it
	digest        string                 // see digestOf; set by resolve
}

// check checks the metadata m, stores the result in u.values and u.hidden, and returns warnings. Its error names the
// file, the line and the component.
func (u *unit) check(m component.Metadata) ([]component.Problem, error) {
	values, warnings, err := m.Check(u.spec.Pos, u.spec.Name, u.fields)
	u.values, u.hidden = values, m.Sensitive()
	return warnings, err
}

// resolve resolves the references and checks the result.
func (u *unit) resolve(ctx context.Context, from component.Sources) error {
	m, err := u.spec.Resolve(ctx, from)
	if err != nil {
		return err
	}
	u.digest = u.digestOf(m)
	_, err = u.check(m)
	return err
}

func (u *unit) claimsActors() bool {
	return u.actor || u.values.Bool(state.MetadataActorStateStore)
}

// volatile reports whether the component loses what it holds when it is closed.
func (u *unit) volatile() bool {
	return u.state.Volatile || u.configuration.Volatile || u.pubsub.Volatile
}

// opened returns the error for a factory that failed to open the component. It hides the values of references in the
// message, because the factory may have quoted them.
func (u *unit) opened(err error) error {
	if err == nil {
		return nil
	}
	return u.failed(u.spec.Pos, hide(err, u.hidden))
}

// failed adds file, line and component to an error.
func (u *unit) failed(pos component.Pos, err error) error {
	msg := fmt.Sprintf("component %s (%s)", u.spec.Name, u.spec.Type)
	if where := pos.String(); where != "" {
		msg = where + ": " + msg
	}
	return &fault.Error{Code: fault.CodeOf(err), Op: "loader.Open", Msg: msg, Key: u.spec.Name, Err: err}
}

func (u *unit) logger(l *slog.Logger) *slog.Logger {
	return l.With("component", u.spec.Name, "type", u.typ())
}

// typ returns the type in lower case.
func (u *unit) typ() string { return strings.ToLower(u.spec.Type) }

// late converts an error that was caused by initTimeout to fault.Timeout, with a hint to raise initTimeout. It returns
// other errors unchanged. The context bounded has this timeout, and ctx is the parent of bounded.
func (u *unit) late(ctx, bounded context.Context, err error) error {
	if err == nil || ctx.Err() != nil || !errors.Is(bounded.Err(), context.DeadlineExceeded) {
		return err
	}
	return &fault.Error{Code: fault.Timeout, Op: "loader.Open", Key: u.spec.Name, Err: err,
		Msg:  fmt.Sprintf("it did not open within %s", u.spec.InitTimeout),
		Hint: "look at what it connects to, or raise spec.initTimeout"}
}

func statusOf(spec *component.Spec, s component.State, reason string) component.Status {
	return component.Status{
		Name: spec.Name, Type: strings.ToLower(spec.Type), Version: spec.Version, State: s, Reason: reason,
		Pos: spec.Pos,
	}
}
