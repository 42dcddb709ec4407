package raftfsm_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	wal "github.com/hashicorp/raft-wal"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// Environment variables that turn this test binary into a node to be killed.
const (
	crashDir    = "QUORATE_CRASH_CHILD_DIR"
	crashEngine = "QUORATE_CRASH_CHILD_ENGINE"
	crashStep   = "QUORATE_CRASH_CHILD_STEP"  // the node kills itself at this step of disk work
	crashAt     = "QUORATE_CRASH_CHILD_AT"    // at this occurrence of the step
	crashLimit  = "QUORATE_CRASH_CHILD_LIMIT" // the node stops after this many writes

	crashRounds = "QUORATE_CRASH_ROUNDS" // for the test: rounds of longer runs
	crashSeed   = "QUORATE_CRASH_SEED"
)

const crashWriters = 4

// crashOptions returns options with frequent snapshots, truncations and flushes.
func crashOptions(t testing.TB, dir string, e raftlog.Engine) raftfsm.Options {
	o := options(t, dir)
	o.Engine, o.Partitions = e, 2
	o.Bounds.SnapshotEntries, o.Bounds.TrailingEntries = 50, 64
	o.Timing.SnapshotPoll = 5 * time.Millisecond
	return o
}

// TestCrashChild is the process that is killed. It writes, and prints each acknowledged write after its
// acknowledgement:
//
//	ack KEY NUMBER    the numbers of a key are consecutive
//	step NAME N       the N-th occurrence of a step of disk work (only with a limit)
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(crashDir)
	if dir == "" {
		t.Skip("not a test: other tests start and kill this process")
	}
	wal.DefaultSegmentSize = 64 << 10
	out := &lines{}
	o := crashOptions(t, dir, raftlog.Engine(os.Getenv(crashEngine)))
	o.Fatal = func(err error) {
		out.print("fatal %v", err)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	o.Step = suicide(out)
	h, err := raftfsm.Open(context.Background(), o)
	if err != nil {
		out.print("fatal %v", err)
		t.Fatal(err)
	}
	out.print("open")
	limit, _ := strconv.Atoi(os.Getenv(crashLimit))
	var wg sync.WaitGroup
	for w := range crashWriters {
		wg.Go(func() { crashWrite(t, h.Store("", "s"), w, limit/crashWriters, out) })
	}
	wg.Wait()
	closeHost(t, h)
}

// lines writes whole lines, each with one system call.
type lines struct{ mu sync.Mutex }

func (l *lines) print(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = os.Stdout.WriteString(fmt.Sprintf(format, a...) + "\n")
}

// suicide counts steps and ends the process at the configured one.
func suicide(out *lines) func(string) {
	var mu sync.Mutex
	seen := map[string]int{}
	at, _ := strconv.Atoi(os.Getenv(crashAt))
	tell := os.Getenv(crashLimit) != ""
	return func(step string) {
		mu.Lock()
		seen[step]++
		n := seen[step]
		mu.Unlock()
		if tell {
			out.print("step %s %d", step, n)
		}
		if step == os.Getenv(crashStep) && n == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // takes no further step
		}
	}
}

// crashKeys returns the keys of one writer: strong, eventual, and a pair that is written in one transaction.
func crashKeys(w int) (strong, eventual, left, right string) {
	p := fmt.Sprintf("app%d||", w)
	return p + "strong", p + "eventual", p + "left", p + "right"
}

// crashWrite writes increasing numbers, continuing from the stored ones, until limit (0 = no limit).
func crashWrite(t testing.TB, s *raftfsm.Store, w, limit int, out *lines) {
	strong, eventual, left, right := crashKeys(w)
	number := map[string]int{}
	for _, k := range []string{strong, eventual, left} {
		number[k] = stored(t, s, k)
	}
	for i := 0; limit == 0 || i < limit; i++ {
		var err error
		k := []string{strong, eventual, left}[i%3]
		n := number[k] + 1
		switch k {
		case strong:
			_, err = s.Set(context.Background(), state.SetRequest{Items: []state.Write{numbered(k, n)},
				Consistency: state.Strong})
		case eventual:
			_, err = s.Set(context.Background(), state.SetRequest{Items: []state.Write{numbered(k, n)},
				Consistency: state.Eventual})
		default:
			_, err = s.Transact(context.Background(),
				state.TransactRequest{Operations: []state.Operation{{Write: numbered(left, n)},
					{Write: numbered(right, n)}}})
		}
		if err != nil {
			out.print("fatal write of %s: %v", k, err)
			return
		}
		out.print("ack %s %d", k, n)
		number[k] = n
	}
}

func numbered(key string, n int) state.Write {
	return state.Write{Key: key, Value: fmt.Appendf(nil, "%d %s", n, strings.Repeat("x", 200))}
}

// stored reads the number of a key with a strong read.
func stored(t testing.TB, s *raftfsm.Store, key string) int {
	t.Helper()
	item, err := s.Get(context.Background(), state.GetRequest{Key: key,
		ReadOptions: state.ReadOptions{Consistency: state.Strong}})
	if err != nil {
		t.Fatalf("reading %s: %v", key, err)
	}
	if !item.Found() {
		return 0
	}
	head, _, _ := strings.Cut(string(item.Value), " ")
	n, err := strconv.Atoi(head)
	if err != nil {
		t.Fatalf("%s holds %.40q", key, item.Value)
	}
	return n
}

// child is a running node.
type child struct {
	cmd   *exec.Cmd
	acked map[string]int // newest acknowledged number, by key
	steps map[string]int // occurrences
	fatal []string
	first chan struct{} // closed with its first line
	done  chan struct{} // closed when its output has ended
}

func startChild(t *testing.T, dir string, e raftlog.Engine, env ...string) *child {
	t.Helper()
	c := &child{acked: map[string]int{}, steps: map[string]int{}, first: make(chan struct{}), done: make(chan struct{})}
	c.cmd = exec.Command(os.Args[0], "-test.run=^TestCrashChild$", "-test.count=1")
	c.cmd.Env = append(os.Environ(), append(env, crashDir+"="+dir, crashEngine+"="+string(e))...)
	out, err := c.cmd.StdoutPipe()
	must(t, err)
	must(t, c.cmd.Start())
	go c.read(out)
	return c
}

func (c *child) read(out io.Reader) {
	defer close(c.done)
	first := sync.OnceFunc(func() { close(c.first) })
	defer first()
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return // an incomplete line is ignored
		}
		first()
		word := strings.Fields(line)
		switch {
		case len(word) == 3 && word[0] == "ack":
			c.acked[word[1]], _ = strconv.Atoi(word[2])
		case len(word) == 3 && word[0] == "step":
			c.steps[word[1]]++
		case len(word) > 0 && word[0] == "fatal":
			c.fatal = append(c.fatal, strings.TrimSpace(line))
		}
	}
}

// wait waits until the process has ended and all its output is read.
func (c *child) wait(t *testing.T) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(time.Minute):
		_ = c.cmd.Process.Kill()
		t.Fatal("the process does not end")
	}
	_ = c.cmd.Wait() // the process was killed or has printed the error
	if len(c.fatal) > 0 {
		t.Fatalf("the process failed: %v", c.fatal)
	}
}

// kill kills the process d after its first line or, if atOnce is set, d after its start.
func (c *child) kill(t *testing.T, d time.Duration, atOnce bool) {
	t.Helper()
	if !atOnce {
		<-c.first
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.done:
	}
	must(t, c.cmd.Process.Kill())
	c.wait(t)
}

// newest holds the last acknowledged numbers of all rounds.
type newest map[string]int

func (n newest) add(c *child) {
	for k, v := range c.acked {
		n[k] = max(n[k], v)
	}
}

// check opens the directory and compares it with the acknowledged writes. Each key must have the number that
// was acknowledged last, or the next one, which was in flight.
func (n newest) check(t *testing.T, dir string, e raftlog.Engine) {
	t.Helper()
	o := crashOptions(t, dir, e)
	o.Registerer = prometheus.NewRegistry()
	h := open(t, o)
	s := h.Store("", "s")
	for w := range crashWriters {
		strong, eventual, left, right := crashKeys(w)
		for _, k := range []string{strong, eventual, left} {
			got := stored(t, s, k)
			if got < n[k] || got > n[k]+1 {
				t.Errorf("%s has write %d, but %d was acknowledged last", k, got, n[k])
			}
			n[k] = got // a write in flight at the crash has become visible
		}
		if l, r := stored(t, s, left), stored(t, s, right); l != r {
			t.Errorf("a transaction is incomplete: %d and %d", l, r)
		}
	}
	closeHost(t, h)
}

func crashRandom(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	if s := os.Getenv(crashSeed); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		must(t, err)
	}
	t.Logf("seed %d (%s)", seed, crashSeed)
	return rand.New(rand.NewPCG(seed, 1))
}

func crashCount(t *testing.T, short int) int {
	s := os.Getenv(crashRounds)
	if s == "" {
		return short
	}
	n, err := strconv.Atoi(s)
	must(t, err)
	return n
}

func forEngines(t *testing.T, f func(*testing.T, raftlog.Engine)) {
	for _, e := range []raftlog.Engine{raftlog.BoltDB, raftlog.WAL} {
		t.Run(string(e), func(t *testing.T) {
			t.Parallel() // the test mostly waits for the disk
			f(t, e)
		})
	}
}

func TestCrash_KilledProcessLosesNothing(t *testing.T) {
	forEngines(t, func(t *testing.T, e raftlog.Engine) {
		rnd, dir, acked := crashRandom(t), filepath.Join(t.TempDir(), "data"), newest{}
		for range crashCount(t, 15) {
			c := startChild(t, dir, e)
			atOnce := rnd.IntN(5) == 0
			c.kill(t, time.Duration(rnd.IntN(200))*time.Millisecond, atOnce)
			acked.add(c)
			acked.check(t, dir, e)
			if t.Failed() {
				return
			}
		}
		total := 0
		for _, n := range acked {
			total += n
		}
		t.Logf("%d writes", total)
		if total < 100 {
			t.Errorf("only %d writes: the test shows too little", total)
		}
	})
}

func TestCrash_AtAnyStepLosesNothing(t *testing.T) {
	testutil.SkipUnderRace(t, "starts and kills processes, which run without the detector")
	forEngines(t, func(t *testing.T, e raftlog.Engine) {
		rnd := crashRandom(t)
		run := startChild(t, filepath.Join(t.TempDir(), "data"), e, crashLimit+"=600")
		run.wait(t)
		var names []string
		for name := range run.steps {
			names = append(names, name)
		}
		sort.Strings(names)
		t.Logf("steps seen: %v", run.steps)
		if len(names) < 10 {
			t.Fatalf("only the steps %v were seen", names)
		}
		for _, name := range names {
			for _, at := range occurrences(rnd, run.steps[name]) {
				t.Run(fmt.Sprintf("%s#%d", name, at), func(t *testing.T) { crashOnce(t, e, name, at) })
			}
		}
	})
}

// occurrences returns the first, the second, and a later occurrence at random.
func occurrences(rnd *rand.Rand, n int) []int {
	switch {
	case n <= 2:
		return []int{1, 2}[:n]
	default: // another run may see fewer, so choose from the first half
		return []int{1, 2, 3 + rnd.IntN(max(n/2-2, 1))}
	}
}

// crashOnce lets a new node kill itself at a step, and then continues with what is left.
func crashOnce(t *testing.T, e raftlog.Engine, step string, at int) {
	dir, acked := filepath.Join(t.TempDir(), "data"), newest{}
	c := startChild(t, dir, e, crashStep+"="+step, crashAt+"="+strconv.Itoa(at))
	c.wait(t)
	if s := c.cmd.ProcessState; s.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process was not killed: %v", s)
	}
	acked.add(c)
	acked.check(t, dir, e)
	again := startChild(t, dir, e, crashLimit+"=40")
	again.wait(t)
	acked.add(again)
	acked.check(t, dir, e)
}
