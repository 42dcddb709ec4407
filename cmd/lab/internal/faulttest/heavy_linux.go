package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// largest is the size of the largest value that fits into a request.
const largest = 4<<20 - 512

// heavy starts clients that send large writes: one large value, or 60 values of 64 KiB in one request. The function
// stop ends the clients.
func (c *Cluster) heavy(ctx context.Context, seed uint64) (stop func(context.Context) error) {
	const clients = 3
	var stops []func(context.Context) error
	for id := range clients {
		rnd := rand.New(rand.NewPCG(seed, uint64(id))) //nolint:gosec // chance, not a secret
		stops = append(stops, during(ctx, func(ctx context.Context) {
			nodes := c.Running()
			if len(nodes) == 0 {
				pause(ctx, 10*time.Millisecond)
				return
			}
			r := Set(fmt.Sprintf("heavy-%d", id), strings.Repeat(strconv.Itoa(rnd.IntN(10)), largest), Strong)
			if rnd.IntN(2) == 0 {
				writes := make([]Write, 60)
				for i := range writes {
					writes[i] = Write{Key: fmt.Sprintf("heavy-%d-%d", id, i),
						Value: strings.Repeat(strconv.Itoa(rnd.IntN(10)), 64<<10)}
				}
				r = SetAll(writes, Strong)
			}
			limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*answerTime)
			defer cancel()
			if nodes[rnd.IntN(len(nodes))].Do(limit, r).Outcome != Done {
				pause(ctx, 20*time.Millisecond)
			}
		}))
	}
	return func(ctx context.Context) error {
		var errs []error
		for _, s := range stops {
			errs = append(errs, s(ctx))
		}
		return errors.Join(errs...)
	}
}

// Heavy returns a fault during which additional clients write large values.
func Heavy() Fault {
	return fault("values of 4 MB, and many of 64 KiB at once",
		func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
			return c.heavy(ctx, rnd.Uint64()), nil
		})
}

// Hot returns a fault in which many clients increment one key through all nodes. Every write requires that the key
// still has the ETag that the client has read.
//
// The final value must be at least the number of acknowledged increments. Increments with an unknown outcome may be
// included as well. If the value is outside these bounds, ending the fault returns a Broken error.
func Hot() Fault {
	return fault("one hot key", func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error,
		error) {
		h := &hot{cluster: c, key: fmt.Sprintf("hot-%d", rnd.Uint64())}
		const clients = 16
		var stops []func(context.Context) error
		for range clients {
			r := rand.New(rand.NewPCG(rnd.Uint64(), 0)) //nolint:gosec // chance, not a secret
			stops = append(stops, during(ctx, func(ctx context.Context) { h.count(ctx, r) }))
		}
		return func(ctx context.Context) error {
			for _, s := range stops {
				_ = s(ctx) // it always returns nil
			}
			return h.verify(ctx)
		}, nil
	})
}

// hot is a counter that many clients increment.
type hot struct {
	cluster *Cluster
	key     string

	mu      sync.Mutex
	done    int // guarded by mu: acknowledged increments
	unknown int // guarded by mu
}

func (h *hot) count(ctx context.Context, rnd *rand.Rand) {
	nodes := h.cluster.Running()
	if len(nodes) == 0 {
		pause(ctx, 10*time.Millisecond)
		return
	}
	n := nodes[rnd.IntN(len(nodes))]
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	a := n.Do(limit, Get(h.key, Strong))
	if a.Outcome != Done {
		pause(ctx, 20*time.Millisecond)
		return
	}
	have, _ := strconv.Atoi(a.Items[0].Value) // 0 if absent
	w := Write{Key: h.key, Value: strconv.Itoa(have + 1),
		Condition: Condition{ETag: a.Items[0].ETag, Absent: a.Items[0].Value == ""}}
	switch n.Do(limit, One(w, Strong)).Outcome {
	case Done:
		h.mu.Lock()
		h.done++
		h.mu.Unlock()
	case Unknown:
		h.mu.Lock()
		h.unknown++
		h.mu.Unlock()
	}
}

func (h *hot) verify(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var a Answer
	err := Until(limit, func() error {
		a = h.cluster.Running()[0].Do(limit, Get(h.key, Strong))
		return a.Err()
	})
	if err != nil {
		return err
	}
	got, _ := strconv.Atoi(a.Items[0].Value)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cluster.tell("counted to %d; %d acknowledged, %d of unknown outcome", got, h.done, h.unknown)
	if got < h.done || got > h.done+h.unknown {
		return &Broken{"a conditional write happens once",
			fmt.Sprintf("%s is %d after %d acknowledged and %d unknown additions", h.key, got, h.done, h.unknown)}
	}
	return nil
}

// inspect verifies a backup with the quorate program.
func (n *Node) inspect(ctx context.Context, file string) error {
	cmd := exec.CommandContext(ctx, n.cluster.options.Program.Path, "backup", "inspect",
		file) //nolint:gosec // what the caller wants to test
	cmd.Env = append(cmd.Environ(), n.cluster.options.Program.Env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return &Broken{"a backup can be read", fmt.Sprintf("%v: %s", err, out)}
	}
	return nil
}
