package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Fault is a fault that can be injected into a cluster.
type Fault struct {
	Name string
	// Inflict injects the fault. It makes all random choices with rnd. The function heal ends the fault and repairs
	// the cluster.
	Inflict func(ctx context.Context, c *Cluster, rnd *rand.Rand) (heal func(context.Context) error, err error)
}

// Together returns a fault that consists of several faults. They are injected in order, and end in the reverse order.
func Together(faults ...Fault) Fault {
	names := make([]string, len(faults))
	for i, f := range faults {
		names[i] = f.Name
	}
	return Fault{Name: strings.Join(names, " with "),
		Inflict: func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
			var heals []func(context.Context) error
			undo := func(ctx context.Context) error {
				var errs []error
				for _, heal := range slices.Backward(heals) {
					errs = append(errs, heal(ctx))
				}
				return errors.Join(errs...)
			}
			for _, f := range faults {
				heal, err := f.Inflict(ctx, c, rnd)
				if err != nil {
					return undo, errors.Join(err, undo(ctx))
				}
				heals = append(heals, heal)
			}
			return undo, nil
		}}
}

// Step is one step of a schedule: a pause, and a fault that lasts for a while.
type Step struct {
	Calm  time.Duration // before the fault
	Fault Fault
	For   time.Duration // how long the fault lasts
}

// Schedule is a sequence of faults. Seed determines the random choices of the faults.
type Schedule struct {
	Seed  uint64
	Steps []Step
}

// Random returns a schedule of n faults, picked at random from the given ones. It uses every fault once before it
// repeats any. Equal seeds give equal schedules. Two runs of a schedule may still affect different nodes, because many
// faults affect the current leader.
func Random(seed uint64, n int, choice ...Fault) Schedule {
	rnd := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // chance, not a secret
	s := Schedule{Seed: seed}
	var order []int
	for range n {
		if len(order) == 0 {
			order = rnd.Perm(len(choice))
		}
		s.Steps = append(s.Steps, Step{
			Calm:  time.Duration(200+rnd.IntN(800)) * time.Millisecond,
			Fault: choice[order[0]],
			For:   time.Duration(500+rnd.IntN(4000)) * time.Millisecond,
		})
		order = order[1:]
	}
	return s
}

// String returns the schedule in one line.
func (s Schedule) String() string {
	names := make([]string, len(s.Steps))
	for i, step := range s.Steps {
		names[i] = fmt.Sprintf("%s for %s", step.Fault.Name, step.For)
	}
	return fmt.Sprintf("seed %d: %s", s.Seed, strings.Join(names, ", "))
}

// Play runs the steps one after another, and logs each step. After each fault, it waits until every running node serves
// requests. It stops at the first error, or if a node does not serve requests within the given time.
func (s Schedule) Play(ctx context.Context, c *Cluster, patience time.Duration,
	log func(format string, args ...any)) error {
	rnd := rand.New(rand.NewPCG(s.Seed, 2)) //nolint:gosec // chance, not a secret
	for i, step := range s.Steps {
		pause(ctx, step.Calm)
		log("step %d: %s for %s", i, step.Fault.Name, step.For)
		for _, n := range c.Nodes() {
			n.Mark(fmt.Sprintf("step %d: %s", i, step.Fault.Name))
		}
		heal, err := step.Fault.Inflict(ctx, c, rnd)
		if err != nil {
			return fmt.Errorf("step %d, %s: %w", i, step.Fault.Name, err)
		}
		pause(ctx, step.For)
		begin := time.Now()
		if err := heal(ctx); err != nil {
			return fmt.Errorf("step %d, undoing %s: %w", i, step.Fault.Name, err)
		}
		bounded, cancel := context.WithTimeout(ctx, patience)
		err = c.Ready(bounded)
		cancel()
		if err != nil {
			return fmt.Errorf("step %d: after %s was over: %w", i, step.Fault.Name, err)
		}
		log("step %d: every node serves %s after it was over", i, time.Since(begin).Round(time.Millisecond))
	}
	return nil
}
