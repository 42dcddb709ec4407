package pluggable

import (
	"context"
	"slices"
	"strings"
	"unicode"

	components "github.com/dapr/dapr/pkg/proto/components/v1"
	"google.golang.org/grpc"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
)

const (
	maxOperations    = 100 // operations of one binding; each becomes a label value of metrics
	maxOperationName = 100 // longest name of an operation, in bytes
)

// OpenBinding opens a pluggable binding with the sides that direction selects: input, output or both. If direction is
// not set, OpenBinding opens each side that the process has. It waits for the socket until the deadline of ctx.
func OpenBinding(ctx context.Context, o Options, direction bindings.Direction) (bindings.Binding, error) {
	b := &binding{}
	var err error
	b.link, err = openLink(ctx, o, func(ctx context.Context, c *session) error { return b.greet(ctx, c, direction) })
	if err != nil {
		return bindings.Binding{}, err
	}
	out := bindings.Binding{}
	out.Close = func(context.Context) error { b.link.close(); return nil }
	if b.sends {
		out.Output = b
	}
	if b.receives {
		in := newInput(b.link)
		out.Input, out.Close = in, in.close
	}
	return out, nil
}

// binding has what both sides of a binding share. It implements bindings.Output.
type binding struct {
	link            *link
	greeted         bool
	sends, receives bool     // sides of the first connection
	operations      []string // operations of the first connection
}

// greet initialises the sides of the binding that direction selects. If direction is not set, it initialises each side
// that the process has. After a reconnect, the process must have the same sides as before.
func (b *binding) greet(ctx context.Context, c *session, direction bindings.Direction) error {
	sends := direction.Output || !direction.Given() && c.has(components.OutputBinding_ServiceDesc.ServiceName)
	receives := direction.Input || !direction.Given() && c.has(components.InputBinding_ServiceDesc.ServiceName)
	if b.greeted {
		sends, receives = b.sends, b.receives
	}
	if !sends && !receives {
		return c.lacks("InputBinding or OutputBinding")
	}
	if receives {
		if err := c.need(components.InputBinding_ServiceDesc.ServiceName); err != nil {
			return err
		}
		_, err := components.NewInputBindingClient(c.conn).Init(ctx,
			&components.InputBindingInitRequest{Metadata: c.link.properties()})
		if err != nil {
			return c.link.uninitialised(ctx, err)
		}
	}
	var operations []string
	if sends {
		var err error
		if operations, err = outputOperations(ctx, c); err != nil {
			return err
		}
	}
	if !b.greeted {
		b.greeted, b.sends, b.receives, b.operations = true, sends, receives, operations
	}
	return nil
}

// outputOperations initialises the output side and returns its operations.
func outputOperations(ctx context.Context, c *session) ([]string, error) {
	const op = "pluggable.ListOperations"
	if err := c.need(components.OutputBinding_ServiceDesc.ServiceName); err != nil {
		return nil, err
	}
	client := components.NewOutputBindingClient(c.conn)
	if _, err := client.Init(ctx, &components.OutputBindingInitRequest{Metadata: c.link.properties()}); err != nil {
		return nil, c.link.uninitialised(ctx, err)
	}
	out, err := client.ListOperations(ctx, &components.ListOperationsRequest{})
	if err != nil {
		return nil, c.link.uninitialised(ctx, err)
	}
	operations := out.GetOperations()
	if len(operations) > maxOperations {
		return nil, c.link.tooMany(op, "operations", maxOperations)
	}
	for _, name := range operations {
		if name == "" || len(name) > maxOperationName || strings.ContainsFunc(name, unfit) {
			return nil, &fault.Error{Code: fault.Corrupt, Op: op,
				Msg: c.link.who() + " has an operation whose name is empty, too long or not plain text: " +
					shorten(name)}
		}
	}
	return operations, nil
}

func unfit(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }

// Operations implements bindings.Output.
func (b *binding) Operations() []string { return slices.Clone(b.operations) }

// Invoke implements bindings.Output. Names of operations are not case-sensitive: Invoke sends the spelling that the
// process uses.
func (b *binding) Invoke(ctx context.Context, r bindings.Request) (*bindings.Response, error) {
	const op = "pluggable.Invoke"
	i := slices.IndexFunc(b.operations, func(o string) bool { return strings.EqualFold(o, r.Operation) })
	if i < 0 {
		return nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: "the binding does not have this operation",
			Hint: "use one of: " + strings.Join(b.operations, ", ")}
	}
	var out *components.InvokeResponse
	failed := b.link.call(ctx, writing, func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		out, err = components.NewOutputBindingClient(conn).Invoke(ctx, &components.InvokeRequest{Data: r.Data,
			Metadata: r.Metadata, Operation: b.operations[i]})
		return err
	})
	if failed != nil {
		err := b.link.fault(op, "", failed, reading)
		switch fault.CodeOf(err) {
		case fault.Unavailable, fault.Timeout, fault.TooLarge: // TooLarge: the answer is too large
			if failed.sent {
				return nil, &fault.Error{Code: fault.Indeterminate, Op: op, Err: err}
			}
			return nil, err
		case fault.Denied, fault.Invalid, fault.Overloaded:
			return nil, err
		}
		return nil, &fault.Error{Code: fault.Unavailable, Op: op, Err: err}
	}
	return &bindings.Response{Data: out.GetData(), Metadata: out.GetMetadata()}, nil
}
