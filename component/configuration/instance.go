package configuration

import "slices"

// Metadata names of the stores that can be written.
const (
	MetadataWriters      = "writers"      // app ids that may write, separated by commas
	MetadataMaxValueSize = "maxValueSize" // largest value in bytes
)

// Instance is one opened configuration store with the settings of its component file. It is immutable.
type Instance struct {
	Name      string
	Type      string // in lower case
	Version   string
	Namespace string   // namespace of the node; empty = none
	Scopes    []string // app ids that may use the store; empty = all
	Writers   []string // app ids that may write; empty = none
	Store     Store
}

// VisibleTo reports whether the application may use the store.
func (i *Instance) VisibleTo(app string) bool {
	return len(i.Scopes) == 0 || slices.Contains(i.Scopes, app)
}

// WritableBy reports whether the application may write items.
func (i *Instance) WritableBy(app string) bool { return slices.Contains(i.Writers, app) }
