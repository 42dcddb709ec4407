package bindings

import (
	"cmp"
	"slices"
)

// Instance is an opened binding with the settings of its component. It is immutable.
type Instance struct {
	Name      string
	Type      string // in lower case
	Version   string
	Namespace string   // namespace of the node; empty = none
	Scopes    []string // ids of the applications that may use the binding; empty = all
	Route     string   // path of the application that events go to; empty = Name
	Direction Direction
	Binding
}

// VisibleTo reports whether the application may use the binding.
func (i *Instance) VisibleTo(app string) bool {
	return len(i.Scopes) == 0 || slices.Contains(i.Scopes, app)
}

// Path returns the path of the application that receives events, without a leading slash.
func (i *Instance) Path() string { return cmp.Or(i.Route, i.Name) }

// Receives reports whether the binding receives events. This is true if it has an input, and the component does not
// limit it to output.
func (i *Instance) Receives() bool {
	return i.Input != nil && (i.Direction.Input || !i.Direction.Given())
}

// Sends reports whether the binding sends data. This is true if it has an output, and the component does not limit it
// to input.
func (i *Instance) Sends() bool {
	return i.Output != nil && (i.Direction.Output || !i.Direction.Given())
}
