package history

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Step is one activity of a workflow. Its input consists of the results of earlier steps.
type Step struct {
	Name  string
	After []int // indexes of the steps whose results are the input
}

// Instance is a workflow instance that a client has tried to start. The output of the workflow is the list of the
// results of its steps. All times are since the start of the history.
type Instance struct {
	ID         string
	Kind       string
	Steps      []Step
	Begin, End time.Duration
	Result     Result // result of the request that starts the instance: Written, Refused or Unknown
	Ends       bool   // a client may terminate the instance, so it may end without an output
}

// Execution is one execution of an activity. Its result is its id, which is unique.
type Execution struct {
	ID, Instance, Step, Node string
	Input                    []string // results of earlier steps
	Begin                    time.Duration
}

// Outcome is the last state of an instance. An instance that does not exist has no status.
type Outcome struct {
	Completed  bool
	Terminated bool
	Status     string
	Output     []string // results of the steps
}

// Workflows records starts of workflows, executions of activities, and outcomes. It is safe for concurrent use.
type Workflows struct {
	begun time.Time

	mu         sync.Mutex
	instances  map[string]*Instance // by id; guarded by mu, as are the fields below
	executions map[string][]*Execution
	outcomes   map[string]Outcome
}

// NewWorkflows starts a history.
func NewWorkflows() *Workflows {
	return &Workflows{begun: time.Now(), instances: map[string]*Instance{}, executions: map[string][]*Execution{},
		outcomes: map[string]Outcome{}}
}

// Now returns the time since the start of the history.
func (h *Workflows) Now() time.Duration { return time.Since(h.begun) }

// AddInstance records an instance after the request to start it has ended, with or without an answer.
func (h *Workflows) AddInstance(i *Instance) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.instances[i.ID] = i
}

// AddExecution records the execution e, sets e.ID to a new id, and returns this id.
func (h *Workflows) AddExecution(e *Execution) (id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.ID = fmt.Sprintf("%s.%s.%d", e.Instance, e.Step, len(h.executions[e.Instance]))
	h.executions[e.Instance] = append(h.executions[e.Instance], e)
	return e.ID
}

// Ended records the last state of an instance.
func (h *Workflows) Ended(id string, o Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outcomes[id] = o
}

// Open returns the ids of the instances that are not known to be completed or terminated. It omits an instance whose
// start was refused. If the outcome of the start is unknown, it also omits the instance once it is known not to exist.
func (h *Workflows) Open() (ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, i := range h.instances {
		o, read := h.outcomes[id]
		if !o.Completed && !o.Terminated && (i.Result == Written || i.Result == Unknown && (!read || o.Status != "")) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// KindOf returns the kind of an instance, or "" if no start with this id was recorded.
func (h *Workflows) KindOf(id string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := h.instances[id]; i != nil {
		return i.Kind
	}
	return ""
}

// Newest returns the time at which the latest recorded start began.
func (h *Workflows) Newest() (at time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, i := range h.instances {
		at = max(at, i.Begin)
	}
	return at
}

// Check returns the violations of these guarantees:
//
//  1. If the start of an instance was acknowledged, the instance completes or a client terminates it.
//  2. If the start was refused, the instance does nothing.
//  3. If the outcome of the start is unknown, the instance either ends as in the first case or does nothing.
//  4. The output has one result for each step, from an execution of this step in this instance.
//  5. The input of every execution consists of results that are in the output.
//
// The cost of Check is linear in the number of steps and executions.
func (h *Workflows) Check() (bad []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(h.executions)) {
		if i := h.instances[id]; i == nil || i.Result == Refused {
			bad = append(bad, fmt.Sprintf("instance %s was not started, and has executed activities\n%s", id,
				h.listLocked(id)))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(h.outcomes)) {
		i, o := h.instances[id], h.outcomes[id]
		switch {
		case i == nil:
		case o.Status == "" && i.Result != Written && len(h.executions[id]) > 0:
			bad = append(bad, fmt.Sprintf("instance %s has executed activities, and does not exist\n%s", id,
				h.listLocked(id)))
		case o.Status == "" && i.Result != Written:
		case o.Terminated && i.Ends:
		case !o.Completed:
			bad = append(bad, fmt.Sprintf("instance %s has not completed: its status is %q\n%s", id, o.Status,
				h.listLocked(id)))
		default:
			if text := h.checkLocked(i, o.Output); text != "" {
				bad = append(bad, text+"\n"+h.listLocked(id))
			}
		}
	}
	return bad
}

// checkLocked returns what is wrong with an instance that has completed.
func (h *Workflows) checkLocked(i *Instance, output []string) string {
	if len(output) != len(i.Steps) {
		return fmt.Sprintf("instance %s has %d results of %d steps", i.ID, len(output), len(i.Steps))
	}
	inputs := map[string][]string{} // by step
	steps := map[string]string{}    // by result
	for j, s := range i.Steps {
		for _, k := range s.After {
			inputs[s.Name] = append(inputs[s.Name], output[k])
		}
		steps[output[j]] = s.Name
	}
	if len(steps) != len(i.Steps) {
		return fmt.Sprintf("instance %s has one result for several steps", i.ID)
	}
	found := 0
	for _, e := range h.executions[i.ID] {
		if !slices.Equal(e.Input, inputs[e.Step]) {
			return fmt.Sprintf("two results were applied for one step of instance %s: execution %s got %v", i.ID, e.ID,
				e.Input)
		}
		if step, ok := steps[e.ID]; ok {
			if found++; step != e.Step {
				return fmt.Sprintf("instance %s has the result %s for step %s", i.ID, e.ID, step)
			}
		}
	}
	if found < len(i.Steps) {
		return fmt.Sprintf("instance %s has results that no activity has returned", i.ID)
	}
	return ""
}

func (h *Workflows) listLocked(id string) string {
	lines := []string{fmt.Sprintf("no start of %s", id)}
	if i := h.instances[id]; i != nil {
		lines[0] = i.String()
	}
	for _, e := range h.executions[id] {
		lines = append(lines, e.String())
	}
	o := h.outcomes[id]
	return strings.Join(append(lines, fmt.Sprintf("in the end %s is %q with %v", id, o.Status, o.Output)), "\n")
}

// String describes the start.
func (i *Instance) String() string {
	return fmt.Sprintf("%s to %s, start of %s %s: %s", micro(i.Begin), micro(i.End), i.Kind, i.ID, i.Result)
}

// String describes the execution.
func (e *Execution) String() string {
	return fmt.Sprintf("%s, execution %s at %s after %v", micro(e.Begin), e.ID, e.Node, e.Input)
}

// Size returns the number of starts and executions.
func (h *Workflows) Size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.instances)
	for _, all := range h.executions {
		n += len(all)
	}
	return n
}

// WriteTo writes all instances as text.
func (h *Workflows) WriteTo(w io.Writer) (n int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for _, id := range slices.Sorted(maps.Keys(h.instances)) {
		lines = append(lines, h.listLocked(id))
	}
	return writeLines(w, lines)
}

// String returns a summary.
func (h *Workflows) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	acknowledged, completed, steps, executions := 0, 0, 0, 0
	for id, i := range h.instances {
		if i.Result == Written {
			acknowledged++
		}
		if h.outcomes[id].Completed {
			completed++
			steps += len(i.Steps)
		}
		executions += len(h.executions[id])
	}
	return fmt.Sprintf("%d starts, %d acknowledged, %d completed with %d steps; %d executions of activities",
		len(h.instances), acknowledged, completed, steps, executions)
}
