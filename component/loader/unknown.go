package loader

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

// withoutIt is the end of a hint for a component that cannot be served. It explains how to start a node without the
// component.
const withoutIt = "or remove it from this folder, or set ignoreErrors: true in its spec to start without it"

// blockNames returns what messages call a component, such as "state store". The key is the first part of the component
// type, such as "state".
func blockNames() map[string]string {
	return map[string]string{blockState: "state store", blockSecrets: "secret store", blockBindings: "binding",
		blockFilters: "HTTP middleware", blockLocks: "lock store", blockConfiguration: "configuration store",
		blockPubSub: "publish/subscribe broker"}
}

// foreignBlocks returns the building blocks that Dapr has and Quorate does not have. A key is the first part of a
// component type, such as "crypto", and the value is the name of the building block.
func foreignBlocks() map[string]string {
	return map[string]string{"conversation": "conversation", "crypto": "cryptography",
		"nameresolution":  "name resolution (Quorate has its own, without a component)",
		"workflowbackend": "workflow backends (Quorate has its own, without a component)"}
}

// unknownBlock returns the error for a type that belongs to no block of Quorate.
func unknownBlock(spec *component.Spec) error {
	typ, block := spec.Type, blockOf(spec.Type)
	e := &fault.Error{Code: fault.NotFound, Op: "loader.Read", Msg: "the component type " + typ + " is unknown"}
	if name, daprs := foreignBlocks()[block]; daprs {
		e.Msg += ": Quorate does not serve Dapr's building block " + name
		if !spec.IgnoreErrors {
			e.Hint = strings.TrimPrefix(withoutIt, "or ")
		}
		return e
	}
	e.Hint = "a type begins with " + blockState + "., " + blockSecrets + "., " + blockBindings + "., " +
		blockFilters + "., " + blockLocks + "., " + blockConfiguration + ". or " + blockPubSub + "."
	return e
}

// explain adds details to the error for an unknown component type: the name of the building block, and a hint on how to
// correct the file. It returns all other errors unchanged.
func explain(spec *component.Spec, err error) error {
	name, known := blockNames()[blockOf(spec.Type)]
	hint := fault.HintOf(err)
	if !known || !fault.Is(err, fault.NotFound) || hint == "" {
		return err
	}
	msg := strings.TrimSuffix(fault.Text(err), " ("+hint+")") + ": no " + name + " of this type and version is built in"
	if types, lists := strings.CutPrefix(hint, "known: "); lists {
		hint = "use one of " + types
	}
	if !spec.IgnoreErrors {
		hint += ", " + withoutIt
	}
	return &fault.Error{Code: fault.NotFound, Op: "loader.Read", Msg: msg, Hint: hint}
}

// Skipped returns a problem for each component that the node may be unable to serve. Such a component is invalid and
// sets ignoreErrors, or its type is not built in and needs a separate process.
func (p *Plan) Skipped() []component.Problem {
	var out []component.Problem
	for _, c := range p.rejected {
		if c.State == component.Failed {
			out = append(out, component.Problem{Text: "skipped because of ignoreErrors: " + c.Reason})
		}
	}
	for _, u := range slices.Concat(p.secrets, p.state, p.bindings, p.filters, p.locks, p.configurations, p.pubsubs) {
		if !u.outside {
			continue
		}
		one := component.Problem{Pos: u.spec.TypePos, Hint: "see docs/components/pluggable.md",
			Text: fmt.Sprintf("component %s (%s): this type is not built in, so a process must serve it", u.spec.Name,
				u.spec.Type)}
		if u.spec.IgnoreErrors {
			one.Text += "; otherwise the component is skipped because of ignoreErrors"
		} else {
			one.Text += "; otherwise the node does not start"
			one.Hint += ", " + withoutIt
		}
		out = append(out, one)
	}
	return out
}
