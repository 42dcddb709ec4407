package group

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/internal/testutil"
)

// incarnations are the nodes without replicas of a load. A node that was killed starts again as a new incarnation.
type incarnations[N incarnation] struct {
	s     *sim
	open  func(id int) N // starts a node
	tasks sync.WaitGroup // goroutines of the nodes; end waits for them

	mu    sync.Mutex
	nodes []N // guarded by mu; the zero value = the node is starting again
}

// incarnation is one incarnation of a node. Unless kill is true, close first sends what the application has answered.
type incarnation interface {
	comparable
	close(kill bool)
}

// startAll starts n nodes. A blow of the schedule may kill a node.
func (i *incarnations[N]) startAll(n int) {
	i.nodes = make([]N, n)
	for id := range n {
		i.start(id)
	}
}

func (i *incarnations[N]) start(id int) {
	n := i.open(id)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.nodes[id] = n
}

// kill ends a node with its application at once, and starts it again.
func (i *incarnations[N]) kill(id int) {
	id %= len(i.nodes)
	var none N
	i.mu.Lock()
	n := i.nodes[id]
	i.nodes[id] = none
	i.mu.Unlock()
	if n == none {
		return
	}
	i.s.count(func(t *simTotals) { t.Kills++ })
	i.tasks.Go(func() { n.close(true) })
	i.start(id)
}

// end ends the nodes.
func (i *incarnations[N]) end() {
	var none N
	i.mu.Lock()
	nodes := i.nodes
	i.mu.Unlock()
	for _, n := range nodes {
		if n != none {
			i.tasks.Go(func() { n.close(false) })
		}
	}
	i.tasks.Wait()
}

// verdict returns an error with the first broken guarantee that the simulation has found, or otherwise with those that
// Check finds in the history h. The error also lists the faults. verdict returns nil if no guarantee was broken.
func (s *sim) verdict(t *testing.T, h interface {
	io.WriterTo
	Check() []string
}) error {
	t.Helper()
	broken := s.broken
	if bad := h.Check(); broken == nil && len(bad) > 0 {
		broken = errors.New(strings.Join(bad, "\n"))
	}
	if broken == nil {
		return nil
	}
	if os.Getenv("QUORATE_SIM_LOG") != "" {
		_, _ = h.WriteTo(t.Output())
	}
	return fmt.Errorf("%w\n%s", broken, strings.Join(s.events, "\n"))
}

// findsFault plays schedules in which a guard is disabled, until one of them breaks a guarantee. It fails the test if
// none of the first enough schedules does.
func findsFault(t *testing.T, enough uint64, play func(seed uint64) (simTotals, error)) {
	t.Helper()
	testutil.SkipUnderRace(t, testutil.ManyBubbles)
	if testing.Short() {
		t.Skip("simulates whole clusters")
	}
	for seed := range enough {
		if _, err := play(seed); err != nil {
			t.Logf("found with seed %d: %v", seed, err)
			return
		}
	}
	t.Errorf("%d schedules found nothing", enough)
}
