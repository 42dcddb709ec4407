package raftfsm_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/powercut"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// Environment variables of the process whose power is cut.
const (
	powerDir     = "QUORATE_POWER_CHILD_DIR"
	powerTrace   = "QUORATE_POWER_CHILD_TRACE"
	powerEngine  = "QUORATE_POWER_CHILD_ENGINE"
	powerServers = "QUORATE_POWER_CHILD_SERVERS"
	powerLimit   = "QUORATE_POWER_CHILD_LIMIT" // writes of each writer after which the process ends; 0 = no limit

	powerCuts   = "QUORATE_POWER_CUTS"   // for the test: power cuts of each kind of cluster; default 24
	powerBinary = "QUORATE_POWER_BINARY" // for the test: a test binary with the overlay; empty = build one

	crashSeed = "QUORATE_CRASH_SEED" // for tests that break things at random

	powerSegment = 64 << 10 // bytes of one raft-wal segment
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

// crashKeys returns the keys of one writer: strong, eventual, and a pair that is written in one transaction.
func crashKeys(w int) (strong, eventual, left, right string) {
	p := fmt.Sprintf("app%d||", w)
	return p + "strong", p + "eventual", p + "left", p + "right"
}

func numbered(key string, n int) state.Write {
	return state.Write{Key: key, Value: fmt.Appendf(nil, "%d %s", n, strings.Repeat("x", 200))}
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

func forEngines(t *testing.T, f func(*testing.T, raftlog.Engine)) {
	for _, e := range []raftlog.Engine{raftlog.BoltDB, raftlog.WAL} {
		t.Run(string(e), func(t *testing.T) {
			t.Parallel() // the test mostly waits for the disk
			f(t, e)
		})
	}
}

// powerTry works like powerOpen, for disks that may be damaged. It returns the errors of starts. fatal gets the errors
// passed to Options.Fatal.
func powerTry(t *testing.T, c *cluster, dir string, e raftlog.Engine, size int, step func(string),
	fatal func(error)) ([]*raftfsm.Host, error) {
	t.Helper()
	hosts, errs := make([]*raftfsm.Host, size), make([]error, size)
	var wg sync.WaitGroup
	for i := range size {
		o := c.options(i+1, func(o *raftfsm.Options) {
			bounds := crashOptions(t, "", e)
			o.Dir, o.Engine, o.Bounds = filepath.Join(dir, fmt.Sprintf("n%d", i+1)), e, bounds.Bounds
			o.Timing.SnapshotPoll = bounds.Timing.SnapshotPoll
			o.Timing.FloorEvery, o.Timing.WitnessEvery = 10*time.Millisecond, 20*time.Millisecond
			o.Registerer, o.Fatal, o.Step, o.Bootstrap = prometheus.NewRegistry(), fatal, step, false
		})
		o.Bootstrap = i == 0 // set after c.options, which otherwise starts an election that a failed start cannot end
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if hosts[i], errs[i] = raftfsm.Open(ctx, o); errs[i] == nil {
				c.mu.Lock()
				c.hosts[hosts[i].Identity().Server] = hosts[i]
				c.mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return hosts, err
	}
	for _, h := range hosts[1:] { // the first forms the cluster; an interrupted join is completed
		if h.Identity().Cluster == "" {
			must(t, h.Adopt(hosts[0].Identity().Cluster, 0))
		}
		for g := range h.Groups() {
			if servers, _ := hosts[0].Groups()[g].Servers(); len(servers) < size {
				c.admit(g, raft.ServerID(h.Identity().Server))
			}
		}
	}
	return hosts, nil
}

// powered is a run of a cluster until its power is cut.
type powered struct {
	records []powercut.Record
	start   string // copy of the directory before the run
}

// powerRun runs a cluster on a directory. If limit is 0, it kills the cluster when the servers have been open for the
// time d. Otherwise the cluster ends after limit writes of each writer.
func powerRun(t *testing.T, binary, dir string, e raftlog.Engine, size, limit int, d time.Duration) powered {
	t.Helper()
	scratch := t.TempDir()
	run := powered{start: filepath.Join(scratch, "start")}
	must(t, os.MkdirAll(dir, 0o700))
	must(t, copyDir(run.start, dir))
	trace := filepath.Join(scratch, "trace")
	cmd := exec.Command(binary, "-test.run=^TestPowerChild$", "-test.count=1")
	cmd.Env = append(os.Environ(), powerDir+"="+dir, powerTrace+"="+trace, powerEngine+"="+string(e),
		powerServers+"="+strconv.Itoa(size), powerLimit+"="+strconv.Itoa(limit))
	out := &childOutput{opened: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var stop <-chan time.Time
	if limit == 0 {
		select {
		case <-out.opened:
		case <-time.After(2 * time.Minute):
		case err := <-ended:
			t.Fatalf("the servers ended: %v\n%s", err, out)
		}
		stop = time.After(d)
	}
	select {
	case <-stop:
		must(t, cmd.Process.Kill())
		<-ended
	case err := <-ended:
		if err != nil || limit == 0 {
			t.Fatalf("the servers ended: %v\n%s", err, out)
		}
	}
	var err error
	run.records, err = powercut.ReadTrace(trace)
	must(t, err)
	must(t, os.Remove(trace))
	return run
}

// childOutput keeps what the process prints. It closes opened when the servers of the process are open.
type childOutput struct {
	mu     sync.Mutex
	text   strings.Builder
	opened chan struct{}
	once   sync.Once
}

func (o *childOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.text.Write(p)
	if strings.Contains(o.text.String(), "open\n") {
		o.once.Do(func() { close(o.opened) })
	}
	return n, err
}

func (o *childOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// promise holds the newest acknowledged write of each key, and the newest one that was tried.
type promise struct{ acked, tried map[string]int }

func (p *promise) note(text string) {
	word := strings.Fields(text)
	switch word[0] {
	case "ack":
		p.acked[word[1]], _ = strconv.Atoi(word[2])
	case "try":
		p.tried[word[1]], _ = strconv.Atoi(word[2])
	}
}

// cut replays a run, cuts the power after each of the records with the given numbers, and calls check with the image.
// before is the promise at the start of the run. cut returns the promise at its end.
func (r *powered) cut(t *testing.T, at []int, keep func(i int) powercut.Keep, skip skip, rnd *rand.Rand,
	before promise, check func(i int, image string, p promise)) promise {
	t.Helper()
	disk, err := powercut.NewDisk(r.start)
	must(t, err)
	scratch := t.TempDir()
	for i := range r.records {
		if i == 0 && !skip.later || i == len(r.records)/2 {
			disk.Lies = skip.syncs
		}
		must(t, disk.Apply(&r.records[i]))
		if text, ok := r.records[i].Note(); ok {
			before.note(text)
		}
		if len(at) > 0 && at[0] == i {
			image := filepath.Join(scratch, strconv.Itoa(i))
			must(t, disk.Image(image, keep(i), rnd))
			check(i, image, before)
			at = at[1:]
		}
	}
	return before
}

// numberIn returns the number of an item that numbered has written. It returns an error if the item has another value.
func numberIn(item state.Item) (int, error) {
	if !item.Found() {
		return 0, nil
	}
	head, _, _ := strings.Cut(string(item.Value), " ")
	n, err := strconv.Atoi(head)
	if err != nil || string(item.Value) != string(numbered("", n).Value) {
		return 0, fmt.Errorf("the value is %.60q: it was never written", item.Value)
	}
	return n, nil
}

// errBroken is the error of a promise that was not kept.
var errBroken = errors.New("broken promise")

// verify starts the servers on an image, reads every key at every server, and writes. It returns errBroken or the
// error of a start.
func (p *promise) verify(t *testing.T, image string, e raftlog.Engine, size int) error {
	t.Helper()
	c := newCluster(t)
	var mu sync.Mutex
	var fatal error
	hosts, err := powerTry(t, c, image, e, size, nil, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		fatal = errors.Join(fatal, err)
	})
	defer func() {
		for _, h := range hosts {
			if h != nil {
				_ = h.Close() // a damaged server may return an error
			}
		}
	}()
	if err != nil {
		return err
	}
	ended := func() error {
		mu.Lock()
		defer mu.Unlock()
		return fatal
	}
	for _, h := range hosts {
		if err := p.read(h, size, ended); err != nil {
			return fmt.Errorf("%s: %w", h.Identity().Node, err)
		}
	}
	return ended()
}

func (p *promise) read(h *raftfsm.Host, size int, ended func() error) error {
	s, got := h.Store("", "s"), map[string]int{}
	for w := range crashWriters {
		strong, eventual, left, right := crashKeys(w)
		for _, k := range []string{strong, eventual, left, right} {
			n, err := powerRead(s, k, ended)
			if err != nil {
				return err
			}
			least, most := p.acked[k], p.tried[k]
			switch {
			case k == right:
				least, most = got[left], got[left]
			case k == eventual && size > 1:
				least = 0 // another server may lead and lack the write
			}
			if n < least || n > most {
				return fmt.Errorf("%w: %s has write %d, acknowledged were %d, tried %d", errBroken, k, n, least, most)
			}
			got[k] = n
		}
	}
	return nil
}

// powerRead reads a number with a strong read, and waits until there is a leader.
func powerRead(s *raftfsm.Store, key string, ended func() error) (int, error) {
	deadline := time.Now().Add(time.Minute)
	for {
		if err := ended(); err != nil {
			return 0, err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		item, err := s.Get(ctx, state.GetRequest{Key: key, ReadOptions: state.ReadOptions{Consistency: state.Strong}})
		cancel()
		if err == nil {
			n, err := numberIn(item)
			if err != nil {
				return 0, fmt.Errorf("%w: %s: %w", errBroken, key, err)
			}
			return n, nil
		}
		if fault.Is(err, fault.Corrupt) || time.Now().After(deadline) {
			return 0, err
		}
		<-time.After(20 * time.Millisecond)
	}
}

// powerProgram returns the test binary whose file operations can be recorded.
func powerProgram(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the overlay is for Linux")
	}
	if path := os.Getenv(powerBinary); path != "" {
		return path
	}
	dir, err := powerBuild()
	must(t, err)
	return filepath.Join(dir, "raftfsm.test")
}

// powerBuild builds the test binary once and returns its folder, which TestMain removes. The first build takes
// minutes, because the overlay changes a package that all others need.
var powerBuild = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "quorate-power-")
	if err != nil {
		return "", err
	}
	powerBuilt = dir
	overlay, err := powercut.WriteOverlay(dir)
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "test", "-c", "-trimpath", "-overlay", overlay, "-tags", powercut.Tag,
		"-o", filepath.Join(dir, "raftfsm.test"), ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building: %w: %s", err, out)
	}
	return dir, nil
})

// powerBuilt is the folder of powerBuild; empty if it was not called.
var powerBuilt string

// cuts returns numbers of records after which the power is cut, in order.
func (r *powered) cuts(rnd *rand.Rand, n int) []int {
	at := make([]int, n)
	for i := range at {
		at[i] = rnd.IntN(len(r.records))
	}
	slices.Sort(at)
	return slices.Compact(at)
}

// steps returns the number of one record of each named step of disk work. This is the first record of the step. If
// again is true, it is a random one.
func (r *powered) steps(rnd *rand.Rand, again bool) []int {
	all := map[string][]int{}
	for i := range r.records {
		if text, ok := r.records[i].Note(); ok {
			if name, ok := strings.CutPrefix(text, "step "); ok {
				all[name] = append(all[name], i)
			}
		}
	}
	var at []int
	for _, name := range slices.Sorted(maps.Keys(all)) {
		i := 0
		if again {
			i = rnd.IntN(len(all[name]))
		}
		at = append(at, all[name][i])
	}
	return at
}

func powerCount(t *testing.T) int {
	s := os.Getenv(powerCuts)
	if s == "" {
		return 24
	}
	n, err := strconv.Atoi(s)
	must(t, err)
	return n
}

// The power of all servers is cut at the same moment, repeatedly. Each time, a cluster starts on what is left on the
// disks, and no acknowledged write may be missing. Each run is cut at some random moments. The next run continues from
// the last of them. In the first run, the moments also include every step of disk work twice: when the step happens
// for the first time, and at a random time.
func TestPowerLoss_LosesNoStrongWrite(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster for each power cut")
	}
	binary := powerProgram(t)
	wal.DefaultSegmentSize = powerSegment
	for _, size := range []int{1, 3} {
		for _, e := range []raftlog.Engine{raftlog.BoltDB, raftlog.WAL} {
			t.Run(fmt.Sprintf("%d servers/%s", size, e), func(t *testing.T) {
				rnd := crashRandom(t)
				dir := filepath.Join(t.TempDir(), "data")
				promised := promise{map[string]int{}, map[string]int{}}
				const eachRun = 6
				limit := 200 // so that the first run does all kinds of disk work
				for left := powerCount(t); left > 0 && !t.Failed(); left -= eachRun {
					run := powerRun(t, binary, dir, e, size, limit, time.Duration(200+rnd.IntN(1500))*time.Millisecond)
					at := run.cuts(rnd, min(eachRun, left))
					if limit > 0 {
						first := run.steps(rnd, false)
						if len(first) < 10 {
							t.Fatalf("only %d steps of disk work were seen", len(first))
						}
						at = slices.Concat(at, first, run.steps(rnd, true))
						slices.Sort(at)
						at, limit = slices.Compact(at), 0
					}
					last := at[len(at)-1]
					var next promise
					keep := func(i int) powercut.Keep { return powercut.Keep(i) % powercut.Keeps }
					run.cut(t, at, keep, skip{}, rnd, promised,
						func(i int, image string, p promise) {
							if i == last {
								must(t, os.RemoveAll(dir))
								must(t, copyDir(dir, image))
								next = promise{maps.Clone(p.acked), maps.Clone(p.tried)}
							}
							if err := p.verify(t, image, e, size); err != nil {
								t.Errorf("power cut after operation %d of %d, keeping %d: %v", i, len(run.records),
									keep(i), err)
							}
						})
					promised = next
				}
				total := 0
				for _, n := range promised.acked {
					total += n
				}
				t.Logf("%d writes acknowledged", total)
			})
		}
	}
}

// skip is a set of syncs that the product could leave out by mistake. Without them, a power cut must break a promise.
type skip struct {
	later bool // only in the second half of a run
	syncs func(path string, dir bool) bool
}

var skips = map[string]skip{
	"log":                        {syncs: logSyncs},
	"log, later":                 {later: true, syncs: logSyncs},
	"terms and votes":            {syncs: named("/stable.db")},
	"database":                   {syncs: func(path string, dir bool) bool { return !dir && named("/db-")(path, dir) }},
	"identity":                   {syncs: named("/node.json")},
	"manifest":                   {syncs: named("/manifest.json")},
	"names in folders":           {syncs: func(_ string, dir bool) bool { return dir }},
	"name of the data directory": {syncs: func(path string, dir bool) bool { return dir && path == "." }},
}

func logSyncs(path string, dir bool) bool {
	return named("/log.db")(path, dir) || named("/wal/")(path, dir)
}

func named(part string) func(string, bool) bool {
	return func(path string, _ bool) bool { return strings.Contains(path, part) }
}

// The checks of TestPowerLoss_LosesNoStrongWrite find a product that leaves out syncs. The test also checks that the
// trace has everything that the product writes. Otherwise the model of the disk would be wrong.
func TestPowerLoss_FindsSkippedSyncs(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server for each power cut")
	}
	binary := powerProgram(t)
	wal.DefaultSegmentSize = powerSegment
	for _, e := range []raftlog.Engine{raftlog.BoltDB, raftlog.WAL} {
		t.Run(string(e), func(t *testing.T) {
			rnd, dir := crashRandom(t), filepath.Join(t.TempDir(), "data")
			run := powerRun(t, binary, dir, e, 1, 200, 0)
			disk, err := powercut.NewDisk(run.start)
			must(t, err)
			for i := range run.records {
				must(t, disk.Apply(&run.records[i]))
			}
			must(t, disk.Differs(dir))
			all := len(run.records)
			for name, skip := range skips {
				t.Run(name, func(t *testing.T) {
					var found error
					run.cut(t, []int{all / 4, all / 3, all / 2, all * 3 / 4, all - 1},
						func(int) powercut.Keep { return powercut.KeepNone }, skip, rnd,
						promise{map[string]int{}, map[string]int{}}, func(_ int, image string, p promise) {
							if found == nil {
								found = p.verify(t, image, e, 1)
							}
						})
					if found == nil {
						t.Error("no power cut shows that these syncs are left out")
					}
					t.Log(found)
				})
			}
		})
	}
}
