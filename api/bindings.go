package api

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
)

// BindingSource is where the binding service finds bindings. Implementations are safe for
// concurrent use; what they answer may change while components are being loaded.
type BindingSource interface {
	// Binding returns the binding that requests call name.
	Binding(name string) (*bindings.Instance, bool)
	// Loaded reports whether all components have been opened.
	Loaded() bool
}

// Bindings serves one application's output bindings. It is immutable and safe for
// concurrent use. All errors are *Error.
type Bindings struct {
	app    App
	source BindingSource
	policy func(binding string) *Policy
}

// NewBindings returns the binding service of app. policy, which may be nil, says how often
// the operations of a binding are tried and how long one may take.
func NewBindings(app App, source BindingSource, policy func(binding string) *Policy) *Bindings {
	if policy == nil {
		policy = func(string) *Policy { return nil }
	}
	return &Bindings{app: app, source: source, policy: policy}
}

// Invoke carries out one operation of an output binding. A nil response means that the
// outside system gives none. With an error the response, if there is one, is what the
// system said.
func (b *Bindings) Invoke(ctx context.Context, name string, r bindings.Request) (*bindings.Response, error) {
	inst, ok := b.source.Binding(name)
	if !ok {
		inst = nil
	}
	if r.Operation == "" {
		return nil, bindingFailed(name, fault.New(fault.Invalid, "api.Invoke", `"operation" is missing from the request`))
	}
	if inst == nil || !inst.Sends() || !inst.VisibleTo(b.app.ID) {
		return nil, bindingFailed(name, b.unknown(name, inst))
	}
	if known := inst.Output.Operations(); !slices.ContainsFunc(known, func(o string) bool { return strings.EqualFold(o, r.Operation) }) {
		return nil, bindingFailed(name, fault.New(fault.Invalid, "api.Invoke",
			"binding "+name+" does not support the operation "+strconv.Quote(show(r.Operation))+"; supported operations: "+strings.Join(known, ", ")))
	}
	var response *bindings.Response
	err := b.policy(name).Repeat(ctx, func(ctx context.Context) (err error) {
		response, err = inst.Output.Invoke(ctx, r)
		return err
	})
	if err != nil {
		return response, bindingFailed(name, err)
	}
	return response, nil
}

func (b *Bindings) unknown(name string, inst *bindings.Instance) error {
	switch {
	case !b.source.Loaded():
		return fault.New(fault.Unavailable, "api.Invoke", "components are being loaded (wait for /v1.0/healthz/outbound)")
	case inst != nil && inst.VisibleTo(b.app.ID):
		return fault.New(fault.NotFound, "api.Invoke", "couldn't find output binding "+show(name)+": the component only receives")
	}
	return fault.New(fault.NotFound, "api.Invoke", "couldn't find output binding "+show(name))
}

// bindingFailed makes the public error: clients know one status and one code for all.
func bindingFailed(name string, err error) *Error {
	text := "it failed; the node's log has the details" // words that no contract vouches for may hold a secret
	if _, ok := fault.As(err); ok {
		text = fault.Text(err)
	} else if errors.Is(err, context.DeadlineExceeded) {
		text = "it did not answer before the request's time was over"
	}
	return &Error{
		Kind: Failed, Code: CodeInvokeOutputBinding,
		Message: "error invoking output binding " + show(name) + ": " + text,
		Details: Details{Reason: string(fault.CodeOf(err)), Metadata: attributes("binding", show(name))},
		cause:   err,
	}
}
