package component

// State is the state of a configured component.
type State string

// The states.
const (
	Ready   State = "ready"   // opened and in use
	Failed  State = "failed"  // could not be opened; the start went on because of ignoreErrors
	Ignored State = "ignored" // meant for other applications or another namespace
)

// Status is the status of a component on metadata, health and status pages.
type Status struct {
	Name         string
	Type         string
	Version      string
	Capabilities []string // sorted; nil unless Ready
	State        State
	Reason       string // why it is not Ready, with a hint; empty if it is Ready
	Pos          Pos    // where it is declared; zero for a built-in one
}
