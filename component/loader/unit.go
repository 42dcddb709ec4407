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

// unit is one component on its way to being opened.
type unit struct {
	spec    *component.Spec
	fields  []component.Field
	state   StateFactory
	secrets SecretStoreFactory
	binding BindingFactory
	values  component.Values       // as of the last check
	hidden  []string               // values that came from references; they must not appear in any text
	scope   *component.SecretScope // of a secret store; nil = everything may be read
	actor   bool                   // carries the actor state whatever its metadata says
}

// check reads metadata into values. Its error names file, line and component already.
func (u *unit) check(m component.Metadata) ([]component.Problem, error) {
	values, warnings, err := m.Check(u.spec.Pos, u.spec.Name, u.fields)
	u.values, u.hidden = values, m.Sensitive()
	return warnings, err
}

// resolve fetches what references stand for and checks again with it.
func (u *unit) resolve(ctx context.Context, from component.Sources) error {
	m, err := u.spec.Resolve(ctx, from)
	if err != nil {
		return err
	}
	_, err = u.check(m)
	return err
}

func (u *unit) claimsActors() bool {
	return u.actor || u.values.Bool(state.MetadataActorStateStore)
}

// opened words the failure of a factory, which may have put anything into its text.
func (u *unit) opened(err error) error {
	if err == nil {
		return nil
	}
	return u.failed(u.spec.Pos, hide(err, u.hidden))
}

// failed puts file, line and component in front of an error.
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

// typ is the type in the one form that is shown and compared.
func (u *unit) typ() string { return strings.ToLower(u.spec.Type) }

// late says how to give a component more time if it was its own time that ran out.
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
		Name: spec.Name, Type: strings.ToLower(spec.Type), Version: spec.Version, State: s, Reason: reason, Pos: spec.Pos,
	}
}
