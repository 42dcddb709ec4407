package benchcmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
)

const (
	maxClients = 4096
	// maxLatency is the greatest latency that the histogram can hold. A longer latency counts as maxLatency.
	// Latencies have a precision of two digits.
	maxLatency = time.Minute
	maxErrors  = 5 // different errors in a report
)

// load is what the clients do.
type load struct {
	name     string // name in the report, for example "save to statestore"
	details  string // further description in the report
	clients  int
	duration time.Duration
	// request sends request number n of a client. If took is not 0, it is the latency. Otherwise the caller measures
	// it.
	request func(ctx context.Context, client, n int) (took time.Duration, err error)
}

// result is what was measured.
type result struct {
	Name     string    `json:"benchmark"`
	Details  string    `json:"details"`
	Clients  int       `json:"clients"`
	Seconds  float64   `json:"seconds"`
	Requests int64     `json:"requests"` // number of requests that succeeded
	Rate     float64   `json:"requestsPerSecond"`
	Failed   int64     `json:"failed"`
	Errors   []failure `json:"errors,omitempty"` // the most frequent errors
	// Latency has milliseconds by the name of the quantile, and the greatest latency as "max".
	Latency map[string]float64 `json:"latencyMilliseconds,omitempty"`

	latencies *hdrhistogram.Histogram
}

// failure is an error that requests have returned.
type failure struct {
	Text  string `json:"error"`
	Count int64  `json:"count"`
}

// meter collects the outcomes of all clients.
type meter struct {
	mu        sync.Mutex
	latencies *hdrhistogram.Histogram
	failures  map[string]int64
	failed    int64
}

func newMeter() *meter {
	return &meter{latencies: hdrhistogram.New(1, maxLatency.Microseconds(), 2), failures: map[string]int64{}}
}

func (m *meter) add(took time.Duration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		_ = m.latencies.RecordValue(min(max(took.Microseconds(), 1), maxLatency.Microseconds())) // within the bounds
		return
	}
	m.failed++
	if text := fault.Text(err); m.failures[text] > 0 || len(m.failures) < 100 {
		m.failures[text]++
	}
}

// failurePause is the pause of a client after a failure. Without this pause, the clients would flood a node that
// refuses every request.
const failurePause = 10 * time.Millisecond

// run lets all clients send requests for l.duration, or until ctx ends, and waits for the requests in progress. The end
// of ctx does not cancel these requests, because the node could execute a canceled save after the benchmark has deleted
// the key. run shows its progress if the given writer is a terminal.
func (l *load) run(ctx context.Context, progress io.Writer) result {
	m, begun := newMeter(), time.Now()
	working, cancel := context.WithTimeout(ctx, l.duration)
	requests := context.WithoutCancel(ctx)
	defer cancel()
	var clients sync.WaitGroup
	for client := range l.clients {
		clients.Go(func() {
			for n := 0; working.Err() == nil; n++ {
				sent := time.Now()
				took, err := l.request(requests, client, n)
				if err != nil && ctx.Err() != nil {
					return // the interruption may be the cause of the error
				}
				m.add(cmp.Or(took, time.Since(sent)), err)
				if err != nil {
					pause(working, failurePause)
				}
			}
		})
	}
	ended, shown := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(shown)
		if command.IsTerminal(progress) {
			m.show(ended, progress, begun)
		}
	}()
	clients.Wait()
	took := time.Since(begun)
	close(ended)
	<-shown
	return m.result(l, took)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// show writes a line to the terminal w, and updates it every second until ended is closed. The line has the number of
// requests in the last second, and the number of failures since the start.
func (m *meter) show(ended <-chan struct{}, w io.Writer, begun time.Time) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last := int64(0); ; {
		select {
		case <-tick.C:
			m.mu.Lock()
			done, failed := m.latencies.TotalCount(), m.failed
			m.mu.Unlock()
			_, _ = fmt.Fprintf(w, "\r%s: %s per second, %s failed\033[K", time.Since(begun).Round(time.Second),
				thousands(done-last), thousands(failed))
			last = done
		case <-ended:
			_, _ = fmt.Fprint(w, "\r\033[K")
			return
		}
	}
}

func (m *meter) result(l *load, took time.Duration) result {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := result{Name: l.name, Details: l.details, Clients: l.clients, Seconds: took.Seconds(),
		Requests: m.latencies.TotalCount(), Failed: m.failed, latencies: m.latencies}
	r.Rate = float64(r.Requests) / max(r.Seconds, 1e-9)
	for text, count := range m.failures {
		r.Errors = append(r.Errors, failure{text, count})
	}
	slices.SortFunc(r.Errors, func(a, b failure) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Text, b.Text))
	})
	r.Errors = r.Errors[:min(len(r.Errors), maxErrors)]
	if r.Requests > 0 {
		r.Latency = map[string]float64{"max": float64(m.latencies.Max()) / 1000}
		for _, q := range quantiles {
			r.Latency[q.name] = float64(m.latencies.ValueAtQuantile(q.percent)) / 1000
		}
	}
	return r
}

// quantiles are the quantiles of the latency that are reported.
var quantiles = []struct {
	name    string
	percent float64
}{{"p50", 50}, {"p90", 90}, {"p99", 99}, {"p99.9", 99.9}}

// write prints the result. It returns fault.Unavailable if no request has succeeded.
func (r *result) write(w io.Writer, asJSON bool) error {
	if asJSON {
		if err := command.WriteJSON(w, r); err != nil {
			return err
		}
		return r.check()
	}
	rows := [][]string{
		{"benchmark", r.Name},
		{"load", fmt.Sprintf("%s, %s, %.1f s", command.Count(r.Clients, "client"), r.Details, r.Seconds)},
		{"requests", thousands(r.Requests) + ", " + thousands(int64(r.Rate)) + " per second"},
	}
	if r.Requests > 0 {
		var parts []string
		for _, q := range quantiles {
			parts = append(parts, q.name+" "+milliseconds(r.latencies.ValueAtQuantile(q.percent)))
		}
		rows = append(rows, []string{"latency", strings.Join(append(parts, "max "+milliseconds(r.latencies.Max())),
			", ")})
	}
	rows = append(rows, []string{"failed", thousands(r.Failed)})
	for _, e := range r.Errors {
		rows = append(rows, []string{"", thousands(e.Count) + " × " + command.Printable(e.Text)})
	}
	if err := command.Table(w, rows); err != nil {
		return err
	}
	return r.check()
}

func (r *result) check() error {
	switch {
	case r.Requests > 0:
		return nil
	case len(r.Errors) > 0:
		return fault.New(fault.Unavailable, "cli.bench", "no request has succeeded: "+r.Errors[0].Text)
	}
	return fault.New(fault.Timeout, "cli.bench", "the run was interrupted before a request was answered")
}

// milliseconds formats a number of microseconds as milliseconds.
func milliseconds(us int64) string {
	digits := 1
	if us < 1000 {
		digits = 2
	}
	return strconv.FormatFloat(float64(us)/1000, 'f', digits, 64) + " ms"
}

// thousands formats a number with separators.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
