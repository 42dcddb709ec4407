package loader

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
)

// BindingFields returns the metadata fields that every binding has.
func BindingFields() []component.Field {
	return []component.Field{
		{Name: bindings.MetadataDirection,
			Check: func(text string) error { _, err := bindings.ParseDirection(text); return err }},
		{Name: bindings.MetadataRoute},
	}
}

// closeTime bounds the time in which the loader closes a binding.
const closeTime = 5 * time.Second

func (p *opening) bindingOf(ctx context.Context, u *unit) error {
	if p.carry(u) {
		return nil
	}
	direction, err := bindings.ParseDirection(u.values.Text(bindings.MetadataDirection))
	if err != nil {
		return u.failed(u.spec.Pos, err)
	}
	b, err := u.binding.Open(ctx, BindingConfig{
		Name: u.spec.Name, Namespace: p.options.Namespace, Type: u.typ(), Version: u.spec.Version,
		Metadata: u.values, Direction: direction, Logger: u.logger(p.options.Logger), Claims: p.options.Claims,
	})
	if err != nil {
		return u.opened(err)
	}
	i := &bindings.Instance{
		Name: u.spec.Name, Type: u.typ(), Version: u.spec.Version, Namespace: p.options.Namespace,
		Scopes: slices.Clone(u.spec.Scopes),
		Route:  strings.TrimPrefix(u.values.Text(bindings.MetadataRoute), "/"), Direction: direction, Binding: b,
	}
	if wanted := wantedSide(i); wanted != "" {
		err := &fault.Error{Code: fault.Invalid, Op: "loader.Open", Msg: "its direction asks for " + wanted +
			", which this type does not have, or not with this metadata",
			Hint: "remove " + bindings.MetadataDirection + ", or give what that side needs"}
		return joinClose(u.failed(u.spec.Pos, err), closeBinding(b))
	}
	if p.options.BindingMetrics != nil {
		p.options.BindingMetrics.Instrument(i)
	}
	p.set.addBinding(u, i)
	return nil
}

// wantedSide returns the side, "input" or "output", that the component's direction requires and the binding lacks. It
// returns "" if no required side is missing.
func wantedSide(i *bindings.Instance) string {
	switch {
	case i.Direction.Input && i.Input == nil:
		return "input"
	case i.Direction.Output && i.Output == nil:
		return "output"
	}
	return ""
}

func closeBinding(b bindings.Binding) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	return b.Close(ctx)
}

func (s *Set) addBinding(u *unit, i *bindings.Instance) {
	closing := &closer{name: i.Name, close: func() error { return closeBinding(i.Binding) }}
	s.add(u, closing, func(s *Set, u *unit) { s.listBinding(u, i) })
}

func (s *Set) listBinding(u *unit, i *bindings.Instance) {
	s.bindings = append(s.bindings, i)
	status := statusOf(u.spec, component.Ready, "")
	if i.Receives() {
		status.Capabilities = append(status.Capabilities, "INPUT_BINDING")
	}
	if i.Sends() {
		status.Capabilities = append(status.Capabilities, "OUTPUT_BINDING")
	}
	s.statuses = append(s.statuses, status)
}

// Binding returns the binding with the given component name. Case matters.
func (s *Set) Binding(name string) (*bindings.Instance, bool) {
	for _, i := range s.bindings {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

// Bindings returns the bindings in the order of their opening.
func (s *Set) Bindings() []*bindings.Instance { return slices.Clone(s.bindings) }
