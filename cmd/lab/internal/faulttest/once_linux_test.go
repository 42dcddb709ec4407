package faulttest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/faulttest"
)

// A node that gets no response from the leader sends a write again to the next leader, although the first one may have
// applied the write. Each key of this test is created by one request, so a conflict means that the request was applied
// twice.
func TestWrite_ForwardedTwiceIsAppliedOnce(t *testing.T) {
	t.Parallel()
	c := formed(t, 3, faulttest.Options{})
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var made, unknown atomic.Int64
	for id := range 48 {
		n := c.Nodes()[id%3]
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("once-%d-%d", id, i)
				call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
				a := n.Do(call, faulttest.One(faulttest.Write{Key: key, Value: "v",
					Condition: faulttest.Condition{Absent: true}}, faulttest.Strong))
				cancel()
				switch a.Outcome {
				case faulttest.Conflict:
					t.Errorf("%s existed before it was created, by one request: %s", key, a.Text)
					return
				case faulttest.Done:
					made.Add(1)
				default:
					unknown.Add(1)
					<-time.After(20 * time.Millisecond)
				}
			}
		})
	}
	for round := range rounds(t, 2) {
		<-time.After(500 * time.Millisecond)
		fault := faulttest.Kill(true)
		if round%2 == 1 {
			fault = faulttest.Deafen() // what it sends arrives, but no response returns
		}
		heal, err := fault.Inflict(t.Context(), c, rand.New(rand.NewPCG(1, 1))) //nolint:gosec // chance, not a secret
		must(t, err)
		before := made.Load()
		must(t, faulttest.Until(within(t, time.Minute), func() error {
			if made.Load() < before+100 {
				return errors.New("too few keys are created")
			}
			return nil
		}))
		must(t, heal(t.Context()))
		must(t, c.Ready(within(t, time.Minute)))
	}
	stop()
	wg.Wait()
	t.Logf("%d keys created, %d requests refused or of unknown outcome", made.Load(), unknown.Load())
}
