package faulttest_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/faulttest"
)

// A pause interrupts turns of an owner, and other nodes take its actors. When it goes on, none of the writes of these
// turns may be applied.
func TestActors_PausedOwnerDoesNotWrite(t *testing.T) {
	t.Parallel()
	chance := seed(t)
	actors := faulttest.NewActors(chance)
	actors.Slow(200 * time.Millisecond)
	c := formed(t, 3, faulttest.Options{Flags: []string{"--request-timeout", "2s", "--app-id", "app"},
		Application: actors.Application})
	actors.Start(c, 12)
	more := func(turns int) {
		from := actors.History.Size()
		must(t, faulttest.Until(within(t, time.Minute), func() error {
			if n := actors.History.Size() - from; n < turns {
				return fmt.Errorf("%d turns of %d", n, turns)
			}
			return nil
		}))
	}
	owner := func() *faulttest.Node { // of most actors
		owned := actors.History.Owned()
		return slices.MaxFunc(c.Nodes(), func(a, b *faulttest.Node) int { return owned[a.Name] - owned[b.Name] })
	}
	more(30)
	for range rounds(t, 2) {
		n := owner()
		must(t, n.Pause())
		more(60)
		must(t, faulttest.Until(within(t, time.Minute), func() error {
			if left := actors.History.Owned()[n.Name]; left > 0 {
				return fmt.Errorf("%d actors have had no turn since the pause of %s", left, n.Name)
			}
			return nil
		}))
		must(t, n.Resume())
		more(30)
	}
	wrong, fired := actors.Stop(within(t, time.Minute), true)
	t.Logf("actors: %s", actors.History)
	for _, w := range slices.Concat(wrong, fired) {
		t.Errorf("actors: %s", w)
	}
}
