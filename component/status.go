package component

// State is what became of a component of the resources.
type State string

// The states.
const (
	Ready   State = "ready"   // opened and in use
	Failed  State = "failed"  // could not be opened; the start went on because of ignoreErrors
	Ignored State = "ignored" // meant for other applications or another namespace
)

// Status is one component as metadata, health and status pages show it.
type Status struct {
	Name         string
	Type         string
	Version      string
	Capabilities []string // sorted; nil unless Ready
	State        State
	Reason       string // why it is not Ready, with the mend; empty if it is
	Pos          Pos    // where it is declared; zero for a built-in one
}
