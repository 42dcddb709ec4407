package node_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/trace"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/timeline"
	"github.com/quorate/quorate/node"
)

// BenchmarkTimeline shows how long each stage of a strong save takes: on one node, at the leader of three, and at a
// follower of three. It records an execution trace of about a second, and reads it with go tool trace. All nodes and
// clients are in one process. The trace itself takes time, so rates are lower than without it.
func BenchmarkTimeline(b *testing.B) {
	if _, err := exec.LookPath("go"); err != nil {
		b.Skip("skipped: there is no go command: ", err)
	}
	single := func(b *testing.B) *node.Node { return open(b, config(b)) }
	three := func(further int) func(b *testing.B) *node.Node {
		return func(b *testing.B) *node.Node {
			nodes, _ := threeWith(b, func(c *node.Config) { c.Cluster.Timing = config(b).Cluster.Timing })
			return nodes[(leads(b, nodes)+further)%len(nodes)]
		}
	}
	for _, where := range []struct {
		name string
		open func(b *testing.B) *node.Node
	}{{"one-node", single}, {"leader", three(0)}, {"follower", three(1)}} {
		b.Run(where.name, func(b *testing.B) {
			addr := where.open(b).Addresses().API[0]
			for _, clients := range []int{1, 64, 512} {
				b.Run("clients="+strconv.Itoa(clients), func(b *testing.B) { trail(b, addr, clients) })
			}
		})
	}
}

// trail records the saves of some clients, and prints how long each stage took.
func trail(b *testing.B, addr string, clients int) {
	b.Helper()
	all := dialAll(b, addr, clients)
	value := strings.Repeat("v", benchBytes)
	save := func(n int) time.Duration {
		return run(b, all, n, "204", func(client, i int) []byte {
			return saveRequest((client*7+i)%benchKeys, value, "strong")
		})
	}
	warm := max(500, clients*4)
	n := int(float64(warm) / save(warm).Seconds()) // about a second
	file := filepath.Join(b.TempDir(), "trace")
	var took time.Duration
	traced(b, file, func() { took = save(n) })
	t := readTimeline(b, file)
	b.ReportMetric(float64(n)/took.Seconds(), "saves/s")
	b.ReportMetric(float64(len(t.entries))/took.Seconds(), "entries/s")
	b.ReportMetric(float64(n)/float64(max(len(t.entries), 1)), "saves/entry")
	fmt.Print("\n", t.table())
}

// traced records an execution trace of f in a file.
func traced(b *testing.B, file string, f func()) {
	b.Helper()
	out, err := os.Create(file)
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	if err := trace.Start(out); err != nil {
		b.Fatal(err)
	}
	f()
	trace.Stop()
}

// stages are the rows of the table, in the order in which a save goes through them.
var stages = []string{
	"whole request in the handler", "read and decode", "at a follower: from sending to the leader to its answer",
	"queue, until the entry is encoded", "log write of the leader", "until one follower has it", "commit",
	"apply", "hand the results over", "wake the request", "end of the handler",
}

// spans collects the durations of the stages. The method mark must be called in the order of time.
type spans struct {
	entries  map[string]map[string]time.Duration // the first time of each stage, by index
	requests map[string]map[string]time.Duration // by goroutine: when the request reached each stage
	took     map[string][]time.Duration          // by stage
}

func (s *spans) add(stage string, from, to time.Duration) {
	if from != 0 && to >= from {
		s.took[stage] = append(s.took[stage], to-from)
	}
}

func (s *spans) entry(index string) map[string]time.Duration {
	if s.entries[index] == nil {
		s.entries[index] = map[string]time.Duration{}
	}
	return s.entries[index]
}

// mark adds one mark of the trace. at is its time, and text is the stage and its parameters.
func (s *spans) mark(goroutine string, at time.Duration, text []string) {
	switch stage := text[0]; stage {
	case timeline.Request:
		s.requests[goroutine] = map[string]time.Duration{stage: at}
	case timeline.Queued, timeline.Forward, timeline.Forwarded, timeline.Answered, timeline.Response:
		r := s.requests[goroutine]
		if r == nil { // a request that another node has forwarded
			r = map[string]time.Duration{}
			s.requests[goroutine] = r
		}
		r[stage] = at
		switch stage {
		case timeline.Queued, timeline.Forward:
			s.add("read and decode", r[timeline.Request], at)
		case timeline.Answered:
			s.answered(r[timeline.Queued], at, s.entry(text[1]))
		case timeline.Forwarded:
			s.add("at a follower: from sending to the leader to its answer", r[timeline.Forward], at)
		case timeline.Response:
			s.add("end of the handler", max(r[timeline.Answered], r[timeline.Forwarded]), at)
			s.add("whole request in the handler", r[timeline.Request], at)
			delete(s.requests, goroutine)
		}
	default:
		first, _ := strconv.ParseUint(text[1], 10, 64)
		last, _ := strconv.ParseUint(text[2], 10, 64)
		for i := first; i <= last; i++ {
			if e := s.entry(strconv.FormatUint(i, 10)); e[stage] == 0 {
				e[stage] = at
			}
		}
	}
}

// answered adds the stages of one request, which the entry e contained.
func (s *spans) answered(queued, at time.Duration, e map[string]time.Duration) {
	encoded := e[timeline.Encoded]
	if queued == 0 || encoded == 0 {
		return // the request began before the trace
	}
	s.add("queue, until the entry is encoded", queued, max(encoded, queued))
	s.add("log write of the leader", encoded, e[timeline.Written])
	s.add("until one follower has it", encoded, e[timeline.Stored])
	s.add("commit", e[timeline.Written], e[timeline.Applying])
	s.add("apply", e[timeline.Applying], e[timeline.Applied])
	s.add("hand the results over", e[timeline.Applied], e[timeline.Settled])
	s.add("wake the request", e[timeline.Settled], at)
}

func (s *spans) table() string {
	var out strings.Builder
	out.WriteString("| stage | p50 | p99 |\n| --- | --- | --- |\n")
	for _, stage := range stages {
		took := s.took[stage]
		if len(took) == 0 {
			continue
		}
		slices.Sort(took)
		fmt.Fprintf(&out, "| %s | %v | %v |\n", stage, took[len(took)/2].Round(time.Microsecond),
			took[len(took)*99/100].Round(time.Microsecond))
	}
	return out.String()
}

// markLine matches a mark in the output of go tool trace.
var markLine = regexp.MustCompile(`G=(\d+) Log Time=(\d+) .*Category="` + timeline.Category + `" Message="([^"]*)"`)

func readTimeline(b *testing.B, file string) *spans {
	b.Helper()
	tool := exec.CommandContext(b.Context(), "go", "tool", "trace", "-d=parsed", file) //nolint:gosec // its own file
	tool.Stderr = os.Stderr
	out, err := tool.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := tool.Start(); err != nil {
		b.Fatal(err)
	}
	s := &spans{entries: map[string]map[string]time.Duration{}, requests: map[string]map[string]time.Duration{},
		took: map[string][]time.Duration{}}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := markLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		at, _ := strconv.ParseInt(m[2], 10, 64)
		s.mark(m[1], time.Duration(at), strings.Fields(m[3]))
	}
	if err := lines.Err(); err != nil {
		b.Fatal(err)
	}
	if err := tool.Wait(); err != nil {
		b.Fatal(err)
	}
	return s
}
