package history

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestWorkflows_FindPlantedFaults(t *testing.T) {
	mutants(t, []string{"a lost start", "an instance that hangs", "a refused start that runs", "a lost result",
		"two results applied", "a result of another step", "a result of another instance", "a result made up"},
		playWorkflows)
}

// playWorkflows plays chains of activities, some of which run twice.
func playWorkflows(_ *testing.T, seed uint64, fault string) error {
	rnd := rand.New(rand.NewPCG(seed, 6))
	strikes := func(name string) bool { return fault == name && rnd.IntN(4) == 0 }
	h := NewWorkflows()
	last := "" // a result of the instance before
	for n := range 30 {
		i := &Instance{ID: fmt.Sprint("i", n), Begin: h.Now(), Result: Written}
		for s := range 3 {
			step := Step{Name: fmt.Sprint("s", s)}
			for k := range s {
				step.After = append(step.After, k)
			}
			i.Steps = append(i.Steps, step)
		}
		exists := true
		switch rnd.IntN(8) {
		case 0:
			i.Result, exists = Refused, strikes("a refused start that runs")
		case 1:
			i.Result, exists = Unknown, rnd.IntN(2) == 0
		default:
			exists = !strikes("a lost start")
		}
		i.End = h.Now()
		h.AddInstance(i)
		var output []string
		for s := 0; exists && s < 3; s++ {
			run := func() string {
				return h.AddExecution(&Execution{Instance: i.ID, Step: i.Steps[s].Name,
					Input: append([]string(nil), output...)})
			}
			result := run()
			if rnd.IntN(4) == 0 { // the worker has ended before the result was stored
				result = run()
			}
			switch {
			case s == 1 && strikes("two results applied"):
				output = append(output, run())
				h.AddExecution(&Execution{Instance: i.ID, Step: "s2", Input: []string{output[0], result}})
				continue
			case s > 0 && strikes("a result of another step"):
				result = output[0]
			case last != "" && strikes("a result of another instance"):
				result = last
			case strikes("a result made up"):
				result = "x"
			}
			output = append(output, result)
		}
		o := Outcome{}
		switch {
		case exists && strikes("an instance that hangs"):
			o = Outcome{Status: "RUNNING"}
		case exists && strikes("a lost result"):
			o = Outcome{Completed: true, Status: "COMPLETED", Output: output[:2]}
		case exists:
			o = Outcome{Completed: true, Status: "COMPLETED", Output: output}
			last = output[2]
		}
		h.Ended(i.ID, o)
	}
	if bad := h.Check(); len(bad) > 0 {
		return errors.New(strings.Join(bad, "\n"))
	}
	return nil
}
