package clustercmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/testutil"
)

// lookOf returns a look at two nodes, of which the second does not answer, at a second of a run.
func lookOf(second int) look {
	at, n := time.Unix(1_000_000+int64(second), 0), uint64(100*second) //nolint:gosec // positive
	lag := uint64(7)
	v := &schema.NodeView{At: at, Figures: schema.Figures{Requests: n, Errors: n / 10, Entries: n, Memory: 64 << 20,
		CPUSeconds: float64(second) / 4,
		Latency:    schema.Histogram{Bounds: []float64{0.001, 0.01}, Counts: []uint64{n / 2, n}, Total: n},
		Stores: []schema.NamedCount{{Name: "statestore", Part: "set", Value: float64(2 * n)},
			{Name: "idle", Part: "get"}},
		Calls: []schema.AppCalls{{From: "shop", To: "orders\x1b[2J", Count: 3 * n, Errors: n}}}}
	answers := schema.NodeReport{Member: schema.MemberStatus{Node: "n1", State: "alive"}, Status: &schema.NodeStatus{},
		Lag: &lag}
	gone := schema.NodeReport{Member: schema.MemberStatus{Node: "n2", State: "failed"}, Error: "gone"}
	return look{at: at, views: map[string]*schema.NodeView{"n1": v}, cluster: schema.ClusterStatus{Node: "n1",
		Nodes: []schema.NodeReport{answers, gone}, Groups: []schema.ClusterGroup{{ID: 3, Leader: "n1", Term: 4}}}}
}

func TestTop_RatesOfAllNodes(t *testing.T) {
	older, newer := lookOf(10), lookOf(12)
	var b strings.Builder
	if err := newer.write(&b, older, 0); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{"2 nodes, 1 of them did not answer, rates of 2s",
		"n1 group 3 100 10 1.0 ms 9.8 ms - 100 7 25 % 64.0 MiB", "n2 (failed) - - - - - - - - - - -", "3 n1 4",
		"STORE OPERATION PER SECOND FAILED/S statestore set 200 0",
		`CALLER APPLICATION PER SECOND FAILED/S shop "orders\x1b[2J" 300 100`} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if strings.Contains(got, "idle") {
		t.Errorf("an idle store is shown:\n%s", b.String())
	}
}

func TestTop_FirstLookHasNoRates(t *testing.T) {
	l := lookOf(10)
	var b strings.Builder
	if err := l.write(&b, look{}, 0); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); strings.Contains(got, "rates of") || strings.Contains(got, "STORE") ||
		!strings.Contains(strings.Join(strings.Fields(got), " "), "n1 group 3 - - - - - - 7 - 64.0 MiB") {
		t.Error(got)
	}
}

// TestTop_FitsTheWidth checks that every value is shown whole at every width. Columns that do not fit are in further
// tables.
func TestTop_FitsTheWidth(t *testing.T) {
	older, newer := lookOf(10), lookOf(12)
	for i := range newer.cluster.Nodes {
		newer.cluster.Nodes[i].Member.Self = i == 0
	}
	newer.cluster.Nodes[0].Status.Disk = &schema.DiskStatus{FreeBytes: 76<<30 + 100<<20}
	for width, tables := range map[int]int{0: 1, 200: 1, 117: 1, 110: 2, 80: 2, 60: 3, 40: 5} {
		var b strings.Builder
		if err := newer.write(&b, older, width); err != nil {
			t.Fatal(err)
		}
		_, head, _ := strings.Cut(b.String(), "\n")
		head, _, _ = strings.Cut(head, "GROUP")
		if got := strings.Count(head, "NODE "); got != tables {
			t.Errorf("width %d: %d tables, not %d:\n%s", width, got, tables, head)
		}
		for line := range strings.SplitSeq(head, "\n") {
			if len(line) > width && width > 0 {
				t.Errorf("width %d: a line has %d columns: %s", width, len(line), line)
			}
		}
		for _, want := range []string{"76.1 GiB", "64.0 MiB", "25 %", "9.8 ms"} {
			if !strings.Contains(head, want) {
				t.Errorf("width %d: no %q in\n%s", width, want, head)
			}
		}
	}
}

// TestTop_ScreenIsResized checks that a resized terminal shows the same look again. Words that do not fit continue on
// the next line.
func TestTop_ScreenIsResized(t *testing.T) {
	screen := &watched{SimulationScreen: tcell.NewSimulationScreen("UTF-8")}
	if err := screen.Init(); err != nil {
		t.Fatal(err)
	}
	screen.SetSize(200, 40)
	l := lookOf(1)
	l.cluster.Groups[0].Reason = "the servers have no majority " + strings.Repeat("x", 60)
	l.cluster.Nodes[0].Status.Disk = &schema.DiskStatus{FreeBytes: 76<<30 + 100<<20}
	looks := make(chan look, 1)
	looks <- l
	p := &top{interval: time.Hour, ask: func(context.Context) look { return <-looks }}
	ended := make(chan error, 1)
	go func() { ended <- p.show(t.Context(), screen) }()
	for _, width := range []int{200, 110, 70} {
		screen.SetSize(width, 40)
		if err := screen.PostEvent(tcell.NewEventResize(width, 40)); err != nil {
			t.Fatal(err)
		}
		testutil.Eventually(t, func() error {
			got := screen.shown()
			if !strings.Contains(got, "76.1 GiB") || strings.Count(got, "x") < 60 {
				return fmt.Errorf("width %d: something is cut:\n%s", width, got)
			}
			return nil
		})
	}
	screen.InjectKey(tcell.KeyRune, 'q', tcell.ModNone)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	screen.Fini()
}

// TestTop_Screen checks that the screen shows the newest look, that arrows scroll within the text, and that q ends the
// command.
func TestTop_Screen(t *testing.T) {
	screen := &watched{SimulationScreen: tcell.NewSimulationScreen("UTF-8")}
	if err := screen.Init(); err != nil {
		t.Fatal(err)
	}
	screen.SetSize(60, 4)
	looks := make(chan look)
	p := &top{interval: time.Millisecond, ask: func(ctx context.Context) look {
		select {
		case l := <-looks:
			return l
		case <-ctx.Done():
			return look{err: ctx.Err()}
		}
	}}
	ended := make(chan error, 1)
	go func() { ended <- p.show(t.Context(), screen) }()
	shows := func(want string) {
		t.Helper()
		testutil.Eventually(t, func() error {
			if got := screen.shown(); !strings.Contains(got, want) {
				return fmt.Errorf("%q is not on the screen:\n%s", want, got)
			}
			return nil
		})
	}
	looks <- look{err: errors.New("no node runs")}
	shows("does not answer: no node runs")
	looks <- lookOf(1)
	looks <- lookOf(2)
	shows("rates of 1s")
	for range 50 {
		screen.InjectKey(tcell.KeyDown, 0, tcell.ModNone)
	}
	shows("q ends, arrows scroll")
	for range 50 {
		screen.InjectKey(tcell.KeyUp, 0, tcell.ModNone)
	}
	shows("rates of 1s")
	screen.InjectKey(tcell.KeyRune, 'q', tcell.ModNone)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	screen.Fini()
}

// watched is a screen whose text can be read while another goroutine draws.
type watched struct {
	tcell.SimulationScreen
	mu   sync.Mutex
	text string
}

// Show implements tcell.Screen.
func (w *watched) Show() {
	w.SimulationScreen.Show()
	cells, width, _ := w.GetContents()
	var b strings.Builder
	for i, c := range cells {
		if i > 0 && i%width == 0 {
			b.WriteByte('\n')
		}
		for _, r := range c.Runes {
			b.WriteRune(r)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = b.String()
}

// shown returns the text on the screen.
func (w *watched) shown() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text
}
