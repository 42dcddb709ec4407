package proof

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/faulttest"
	"github.com/quorate/quorate/cmd/lab/internal/tuned"
	"github.com/quorate/quorate/internal/history"
)

// Options are the options of a campaign. Program and Log are required, and at least one of For and Steps.
type Options struct {
	Program string // its path; with tuned.Env set, it must behave as the quorate command
	Version string // of the tested program, for the report
	Seed    uint64
	For     time.Duration // no new fault begins after this time; 0 = Steps alone decides
	Steps   int           // number of faults; 0 = For alone decides
	Log     func(format string, args ...any)
}

// patience is how long a cluster may take to recover after a fault on a busy machine.
const patience = 2 * time.Minute

const (
	// everywhere is the id of the application that every node serves.
	everywhere = "everywhere"
	// known is how long nodes may take to list all instances of the application after the cluster has recovered.
	known = 10 * time.Second
)

// campaign is one run.
type campaign struct {
	Options
	cluster *faulttest.Cluster
	begun   time.Time
	record  *recorder
	sampler *sampler

	strong    *faulttest.StrongLoad
	sessions  *faulttest.Sessions
	sure      *faulttest.Ledger
	eventual  *faulttest.Ledger
	expiries  *faulttest.Expiries
	locks     *faulttest.LockLoad
	watches   *faulttest.Watches
	actors    *faulttest.ActorLoad
	topics    *faulttest.TopicLoad
	workflows *faulttest.WorkflowLoad

	checks sync.WaitGroup // running checks of histories

	mu       sync.Mutex
	result   *Result // guarded by mu
	step     int     // guarded by mu
	notes    []string
	checked  map[string]int // guarded by mu
	shown    int            // guarded by mu: violations of workloads that were reported
	slowest  time.Duration  // guarded by mu: the longest delay of the catalogue
	excused  int            // guarded by mu: number of lost eventual writes
	digested faulttest.Digest
}

// tuning returns the settings of the tested nodes: early snapshots, a short log, and a short time limit for hanging
// disks.
func tuning() tuned.Tuning {
	t := tuned.Quick()
	t.Bounds.SnapshotEntries, t.Bounds.TrailingEntries, t.Bounds.TrailingBytes = 300, 100, 16<<20
	t.Timing.SnapshotPoll, t.Timing.StallFatal = 200*time.Millisecond, 8*time.Second
	return t
}

// disk is the size of a server's disk in bytes.
const disk = 1 << 30

// Supported returns nil if this machine can run campaigns. Otherwise its error names what is missing.
func Supported() error { return faulttest.Supported(true) }

// Run runs a campaign and returns its result, which includes violations of guarantees. An error means that the
// campaign itself could not be run.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := Supported(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "q") // socket paths must be short
	if err != nil {
		return nil, err
	}
	r := &campaign{Options: o, begun: time.Now(), checked: map[string]int{}}
	r.record = &recorder{begun: r.begun}
	r.result = &Result{Seed: o.Seed, Version: o.Version, Begun: r.begun, Again: r.again(), NotRun: notRun(),
		Faults: map[string]int{}, Resumed: map[string]Times{}}
	err = r.play(ctx, dir)
	if len(r.result.Violations) > 0 || err != nil {
		r.result.Logs = dir
	} else {
		_ = os.RemoveAll(dir)
	}
	return r.result, err
}

func (r *campaign) again() string {
	again := fmt.Sprintf("SEED=%d DURATION=%s ROUNDS=%d make prove", r.Seed, r.For, r.Steps)
	if !tuned.ClockTurns {
		again = "CLOCK=0 " + again // otherwise the same seed gives other faults
	}
	return again
}

// shape returns the options of the cluster. The seed of the campaign determines the log store and the number of
// partitions.
func (r *campaign) shape(dir string) (faulttest.Options, error) {
	resources, err := r.topics.Flags(dir)
	if err != nil {
		return faulttest.Options{}, err
	}
	log := []string{"boltdb", "wal"}[r.Seed%2]
	o := faulttest.Options{
		Program: faulttest.Program{Path: r.Program, Env: []string{tuned.Env + "=" + tuning().Text()}},
		Dir:     dir, DiskSize: disk, Pace: 10 * time.Millisecond,
		Flags: append(resources, "--request-timeout", "2s", "--log-store", log, "--app-id", everywhere),
		Tell:  r.note,
		Application: func(n *faulttest.Node) http.Handler {
			r.workflows.Attend(n)
			return r.topics.Application(n, r.actors.Application(n))
		},
		Watch: func(s faulttest.Seen) {
			r.record.note(s.Begin, s.Took, s.Outcome == faulttest.Done || s.Outcome == faulttest.Conflict,
				s.Outcome == faulttest.Unknown, s.Strong)
		},
	}
	r.result.Nodes = fmt.Sprintf("3 servers, 1 sidecar; log store %s; 1 partition", log)
	if r.Seed%3 == 0 {
		o.Apps = []string{"app1", "app2", "app3"}
		o.Flags = append(o.Flags, "--partitions", "3")
		r.result.Nodes = fmt.Sprintf("3 servers, 1 sidecar; log store %s; 3 partitions, 4 applications", log)
	}
	return o, nil
}

func (r *campaign) play(ctx context.Context, dir string) (err error) {
	r.actors, r.topics = faulttest.NewActors(r.Seed), faulttest.NewTopics(r.Seed)
	r.workflows = faulttest.NewWorkflows(r.Seed)
	options, err := r.shape(dir)
	if err != nil {
		return err
	}
	r.cluster = faulttest.NewCluster(options)
	defer func() { err = errors.Join(err, r.cluster.Close()) }()
	limit, cancel := context.WithTimeout(ctx, patience)
	err = r.form(limit)
	cancel()
	if err != nil {
		return err
	}
	r.Log("%s, formed after %s", r.result.Nodes, time.Since(r.begun).Round(time.Millisecond))
	r.sampler = startSampler(r.cluster, r.begun)
	if err := r.load(ctx); err != nil {
		return err
	}
	whole := r.faults(ctx)
	r.finish(context.WithoutCancel(ctx), whole)
	r.sampler.end()
	r.sum()
	return nil
}

func (r *campaign) form(ctx context.Context) error {
	if err := r.cluster.Form(ctx, 3); err != nil {
		return err
	}
	sidecar, err := r.cluster.AddSidecar()
	if err != nil {
		return err
	}
	return errors.Join(sidecar.Start(), r.cluster.Ready(ctx))
}

func (r *campaign) load(ctx context.Context) (err error) {
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if r.watches, err = faulttest.StartWatches(limit, r.cluster, r.Seed, 2); err != nil {
		return err
	}
	r.locks = faulttest.StartLocks(r.cluster, r.Seed, 4)
	r.actors.Start(r.cluster, 3)
	r.topics.Start(r.cluster, 2)
	r.workflows.Start(r.cluster, 2)
	r.strong = faulttest.StartStrong(r.cluster, r.Seed, 6, 0)
	r.sessions = faulttest.StartSessions(r.cluster, r.Seed, 6)
	r.sure = faulttest.StartLedger(r.cluster, r.Seed, 2, faulttest.Strong, time.Minute, 100)
	r.eventual = faulttest.StartLedger(r.cluster, r.Seed, 2, faulttest.Eventual, time.Minute, 100)
	r.expiries = faulttest.StartExpiries(r.cluster, r.Seed, 4)
	return nil
}

// note adds a text that a fault reports to the notes of the current step.
func (r *campaign) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, text)
}

// done increases the number of checks of a guarantee by times. The parameter id is the id of the guarantee, such as C3.
func (r *campaign) done(id string, times int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checked[id] += times
}

// violated records a violation.
func (r *campaign) violated(check, text string, history []string) {
	r.mu.Lock()
	v := Violation{Check: check, Step: r.step, At: time.Since(r.begun), Text: text, History: history}
	r.result.Violations = append(r.result.Violations, v)
	r.mu.Unlock()
	r.Log("VIOLATION %s", v)
}

// faults runs faults and the checks between them. It returns true when a limit of the campaign is reached or ctx ends.
// It returns false if the cluster did not recover from a fault.
func (r *campaign) faults(ctx context.Context) bool {
	d := newDeck(r.Seed)
	checkpoint := time.Now()
	for number := 1; ctx.Err() == nil; number++ {
		if r.Steps > 0 && number > r.Steps || r.For > 0 && time.Since(r.begun) > r.For {
			return true
		}
		r.mu.Lock()
		r.step, r.notes = number, nil
		r.mu.Unlock()
		if !r.one(ctx, d, number) {
			return false
		}
		r.histories(ctx)
		r.workloads()
		if time.Since(checkpoint) > time.Minute {
			if r.checkpoint(ctx); !r.ready(ctx, "a checkpoint") {
				return false
			}
			checkpoint = time.Now()
		}
	}
	return true
}

// one runs one fault. It returns false if the cluster did not recover.
func (r *campaign) one(ctx context.Context, d *deck, number int) bool {
	s, rnd := d.deal()
	hold(ctx, s.Calm)
	p := Played{Number: number, Class: s.class, Name: s.Fault.Name, Begin: time.Since(r.begun)}
	for _, n := range r.cluster.Nodes() {
		n.Mark(fmt.Sprintf("step %d: %s %s", number, s.class, s.Fault.Name))
	}
	heal, err := s.Fault.Inflict(ctx, r.cluster, rnd)
	if err != nil {
		r.broken(s.Fault.Name, "inflicting it", err)
	}
	hold(ctx, s.For)
	p.Healed = time.Since(r.begun)
	if heal != nil {
		if err := heal(ctx); err != nil {
			r.broken(s.Fault.Name, "undoing it", err)
		}
	}
	r.cluster.Net.Heal()
	whole := ctx.Err() != nil || r.ready(ctx, s.Fault.Name)
	p.Healthy = time.Since(r.begun)
	r.mu.Lock()
	p.Notes = r.notes
	r.result.Played = append(r.result.Played, p)
	r.result.Faults[s.class]++
	r.mu.Unlock()
	r.Log("step %d, %s: %s for %s, whole after %s %s", number, s.class, s.Fault.Name,
		(p.Healed - p.Begin).Round(time.Millisecond),
		(p.Healthy - p.Healed).Round(time.Millisecond), strings.Join(p.Notes, "; "))
	return whole
}

// broken records an error of the named fault as a violation. A faulttest.Broken means that the fault has found a
// violated guarantee. Any other error means that the fault could not be injected or ended. The parameter when describes
// the step that failed.
func (r *campaign) broken(name, when string, err error) {
	check := "cluster"
	var b *faulttest.Broken
	if errors.As(err, &b) {
		check = "C14"
		if strings.Contains(b.Promise, "holds") || strings.Contains(b.Promise, "hold") {
			check = "C7"
		}
		if strings.Contains(b.Promise, "once") {
			check = "C9"
		}
	}
	r.violated(check, fmt.Sprintf("%s, %s: %v", name, when, err), nil)
}

// ready waits until all nodes serve requests and every group has all its voters. While it waits, it restarts nodes that
// have exited. If the cluster is not ready within 2 min (the constant patience), ready records a violation that names
// the last fault, and returns false.
func (r *campaign) ready(ctx context.Context, lastFault string) bool {
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := faulttest.Until(limit, func() error {
		for _, n := range r.cluster.Nodes() {
			if !n.Running() {
				r.note(n.Name + " had ended and is started again")
				if err := n.Start(); err != nil {
					return err
				}
			}
		}
		short, end := context.WithTimeout(limit, 10*time.Second)
		defer end()
		if err := r.cluster.Ready(short); err != nil {
			return err
		}
		return r.cluster.Settled(short, 3)
	})
	if ctx.Err() != nil {
		return true // interrupted
	}
	if err != nil {
		r.violated("C14", fmt.Sprintf("%s after %s was over the cluster is not whole: %v", patience, lastFault, err),
			r.tails())
		return false
	}
	r.done("C14", len(r.cluster.Nodes()))
	r.catalogue(ctx, lastFault)
	return true
}

// catalogue checks that every node lists exactly the running instances of the application. It is called when the
// cluster has recovered from a fault. If the lists are not correct within 10 s (the constant known), catalogue records
// a violation that names the fault.
func (r *campaign) catalogue(ctx context.Context, lastFault string) {
	begin := time.Now()
	limit, cancel := context.WithTimeout(ctx, known)
	defer cancel()
	if err := r.cluster.Catalogued(limit, everywhere); err != nil {
		if ctx.Err() == nil {
			r.violated("C13", fmt.Sprintf("%s after the cluster was whole, after %s: %v", known, lastFault, err),
				r.tails())
		}
		return
	}
	r.done("C13", len(r.cluster.Running()))
	r.mu.Lock()
	r.slowest = max(r.slowest, time.Since(begin))
	r.mu.Unlock()
}

// tails returns the last log lines of the nodes.
func (r *campaign) tails() (out []string) {
	for _, n := range r.cluster.Nodes() {
		out = append(out, "--- "+n.Name)
		out = append(out, strings.Split(n.Tail(15), "\n")...)
	}
	return out
}

// histories moves the finished families of keys out of the history of the strong operations, and checks them in the
// background.
func (r *campaign) histories(ctx context.Context) {
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	h, err := r.strong.Verify(limit)
	if err != nil {
		if ctx.Err() == nil {
			r.violated("C14", err.Error(), nil)
		}
		return
	}
	r.checks.Go(func() { r.linearizable(h) })
}

// checkTime limits the search for a linearization of one family.
const checkTime = 3 * time.Minute

func (r *campaign) linearizable(h *history.Keys) {
	err := h.Check(checkTime, os.TempDir())
	var n *history.NotLinearizable
	switch {
	case errors.As(err, &n):
		r.violated("C1", err.Error(), n.History)
	case err != nil:
		r.violated("C9", err.Error(), nil)
	}
}

// workloads reports the violations that the workloads have found since the last call.
func (r *campaign) workloads() {
	r.mu.Lock()
	from := r.shown
	r.mu.Unlock()
	all := slices.Concat(tagged("C3", r.sessions.Bad()), tagged("C10", r.expiries.Bad()),
		tagged("C15", r.watches.Bad()))
	if len(all) <= from {
		return
	}
	for _, v := range all {
		r.report(v[0], v[1])
	}
	r.mu.Lock()
	r.shown = len(all)
	r.mu.Unlock()
}

// report records a violation that a workload has found. The first line of the text is the title of the violation. If a
// violation with the same title was already recorded, report does nothing. The parameter check is the id of the
// violated guarantee, such as C3.
func (r *campaign) report(check, text string) {
	head, rest, _ := strings.Cut(text, "\n")
	r.mu.Lock()
	known := slices.ContainsFunc(r.result.Violations, func(v Violation) bool { return v.Text == head })
	r.mu.Unlock()
	if !known {
		r.violated(check, head, strings.Split(rest, "\n"))
	}
}

func tagged(check string, texts []string) (out [][2]string) {
	for _, t := range texts {
		out = append(out, [2]string{check, t})
	}
	return out
}

// hold waits for d or the end of ctx.
func hold(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
