package proof

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/cmd/internal/faulttest"
	"github.com/quorate/quorate/cmd/internal/tuned"
)

// Options say what to play. Program is required.
type Options struct {
	Program string // that is the quorate command where tuned.Env is set
	Version string // of what is proved, for the report
	Seed    uint64
	For     time.Duration // no new fault after so long; 0 = Steps alone count
	Steps   int           // no new fault after so many; 0 = For alone counts
	Log     func(format string, args ...any)
}

// patience is how long a cluster may take, on a machine that has other work, until it is
// whole after a fault is over.
const patience = 2 * time.Minute

// everywhere is the application that every node of a campaign is given, and known how long
// it may take, once the cluster is whole, until every node knows of all its instances. The
// promise is 2 s on a machine that has nothing else to do.
const (
	everywhere = "everywhere"
	known      = 10 * time.Second
)

// campaign is one run.
type campaign struct {
	Options
	cluster *faulttest.Cluster
	begun   time.Time
	record  *recorder
	sampler *sampler

	strong   *faulttest.StrongLoad
	sessions *faulttest.Sessions
	sure     *faulttest.Ledger
	eventual *faulttest.Ledger
	expiries *faulttest.Expiries

	checks sync.WaitGroup // of histories, beside the campaign

	mu       sync.Mutex
	result   *Result // guarded by mu
	step     int     // guarded by mu
	notes    []string
	checked  map[string]int // guarded by mu
	told     int            // guarded by mu: violations of workloads that were reported
	slowest  time.Duration  // guarded by mu: the longest that the catalogue of applications took
	excused  int            // guarded by mu: eventual writes that were lost
	digested faulttest.Digest
}

// tuning lets nodes take snapshots soon, keep a short log, and give a hung disk up in time
// for a campaign.
func tuning() tuned.Tuning {
	t := tuned.Quick()
	t.Bounds.SnapshotEntries, t.Bounds.TrailingEntries, t.Bounds.TrailingBytes = 300, 100, 16<<20
	t.Timing.SnapshotPoll, t.Timing.StallFatal = 200*time.Millisecond, 8*time.Second
	return t
}

// disk is the size of the disk of a server.
const disk = 1 << 30

// Supported says what this machine lacks; nil if nothing.
func Supported() error { return faulttest.Supported(true) }

// Run plays a campaign and says what it found. The error is one of the campaign itself; a
// broken promise is in the result.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := Supported(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "q") // the path of a socket must be short
	if err != nil {
		return nil, err
	}
	r := &campaign{Options: o, begun: time.Now(), checked: map[string]int{}}
	r.record = &recorder{begun: r.begun}
	r.result = &Result{Seed: o.Seed, Version: o.Version, Begun: r.begun, Again: r.again(), NotRun: notRun(), Faults: map[string]int{}, Resumed: map[string]Times{}}
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
		again = "CLOCK=0 " + again // or other faults are dealt
	}
	return again
}

// shape is the cluster that a seed asks for.
func (r *campaign) shape(dir string) faulttest.Options {
	log := []string{"boltdb", "wal"}[r.Seed%2]
	o := faulttest.Options{
		Program: faulttest.Program{Path: r.Program, Env: []string{tuned.Env + "=" + tuning().Text()}},
		Dir:     dir, DiskSize: disk, Pace: 10 * time.Millisecond,
		Flags: []string{"--request-timeout", "2s", "--log-store", log, "--app-id", everywhere},
		Tell:  r.note,
		Watch: func(s faulttest.Seen) {
			r.record.note(s.Begin, s.Took, s.Outcome == faulttest.Done || s.Outcome == faulttest.Conflict, s.Outcome == faulttest.Unknown, s.Strong)
		},
	}
	r.result.Nodes = fmt.Sprintf("3 servers, 1 sidecar; log store %s; 1 partition", log)
	if r.Seed%3 == 0 {
		o.Apps = []string{"app1", "app2", "app3"}
		o.Flags = append(o.Flags, "--partitions", "3")
		r.result.Nodes = fmt.Sprintf("3 servers, 1 sidecar; log store %s; 3 partitions, 4 applications", log)
	}
	return o
}

func (r *campaign) play(ctx context.Context, dir string) (err error) {
	r.cluster = faulttest.NewCluster(r.shape(dir))
	defer func() { err = errors.Join(err, r.cluster.Close()) }()
	limit, cancel := context.WithTimeout(ctx, patience)
	err = r.form(limit)
	cancel()
	if err != nil {
		return err
	}
	r.Log("%s, formed after %s", r.result.Nodes, time.Since(r.begun).Round(time.Millisecond))
	r.sampler = startSampler(r.cluster, r.begun)
	r.load()
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

func (r *campaign) load() {
	r.strong = faulttest.StartStrong(r.cluster, r.Seed, 6, 0)
	r.sessions = faulttest.StartSessions(r.cluster, r.Seed, 6)
	r.sure = faulttest.StartLedger(r.cluster, r.Seed, 2, faulttest.Strong, time.Minute, 100)
	r.eventual = faulttest.StartLedger(r.cluster, r.Seed, 2, faulttest.Eventual, time.Minute, 100)
	r.expiries = faulttest.StartExpiries(r.cluster, r.Seed, 4)
}

// note keeps what a fault says of itself.
func (r *campaign) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, text)
}

// done counts a check.
func (r *campaign) done(id string, times int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checked[id] += times
}

// violated notes a broken promise.
func (r *campaign) violated(check, text string, history []string) {
	r.mu.Lock()
	v := Violation{Check: check, Step: r.step, At: time.Since(r.begun), Text: text, History: history}
	r.result.Violations = append(r.result.Violations, v)
	r.mu.Unlock()
	r.Log("VIOLATION %s", v)
}

// faults plays the schedule; false = the cluster did not become whole again.
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

// one plays one fault.
func (r *campaign) one(ctx context.Context, d *deck, number int) bool {
	s, rnd := d.deal()
	hold(ctx, s.Calm)
	p := Played{Number: number, Class: s.class, Name: s.Fault.Name, Begin: time.Since(r.begun)}
	for _, n := range r.cluster.Nodes() {
		n.Mark(fmt.Sprintf("step %d: %s %s", number, s.class, s.Fault.Name))
	}
	mend, err := s.Fault.Inflict(ctx, r.cluster, rnd)
	if err != nil {
		r.broken(s.Fault.Name, "inflicting it", err)
	}
	hold(ctx, s.For)
	p.Mended = time.Since(r.begun)
	if mend != nil {
		if err := mend(ctx); err != nil {
			r.broken(s.Fault.Name, "mending it", err)
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
	r.Log("step %d, %s: %s for %s, whole after %s %s", number, s.class, s.Fault.Name, (p.Mended - p.Begin).Round(time.Millisecond),
		(p.Healthy - p.Mended).Round(time.Millisecond), strings.Join(p.Notes, "; "))
	return whole
}

// broken tells what a fault found or failed with.
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

// ready waits until every node that should run serves, and the votes are where they should
// be. A node that ended itself meanwhile is started again, as a supervisor does.
func (r *campaign) ready(ctx context.Context, after string) bool {
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
		return true // broken off
	}
	if err != nil {
		r.violated("C14", fmt.Sprintf("%s after %s was over the cluster is not whole: %v", patience, after, err), r.tails())
		return false
	}
	r.done("C14", len(r.cluster.Nodes()))
	r.catalogue(ctx, after)
	return true
}

// catalogue checks that every node knows which applications run where, now that the cluster
// is whole.
func (r *campaign) catalogue(ctx context.Context, after string) {
	begin := time.Now()
	limit, cancel := context.WithTimeout(ctx, known)
	defer cancel()
	if err := r.cluster.Catalogued(limit, everywhere); err != nil {
		if ctx.Err() == nil {
			r.violated("C13", fmt.Sprintf("%s after the cluster was whole, after %s: %v", known, after, err), r.tails())
		}
		return
	}
	r.done("C13", len(r.cluster.Running()))
	r.mu.Lock()
	r.slowest = max(r.slowest, time.Since(begin))
	r.mu.Unlock()
}

// tails are the ends of what the nodes say.
func (r *campaign) tails() (out []string) {
	for _, n := range r.cluster.Nodes() {
		out = append(out, "--- "+n.Name)
		out = append(out, strings.Split(n.Tail(15), "\n")...)
	}
	return out
}

// histories checks what clients are done with.
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

// checkTime bounds the search for a linearization of one family.
const checkTime = 3 * time.Minute

func (r *campaign) linearizable(h *faulttest.History) {
	err := h.Check(checkTime, os.TempDir())
	var n *faulttest.NotLinearizable
	switch {
	case errors.As(err, &n):
		r.violated("C1", err.Error(), n.History)
	case err != nil:
		r.violated("C9", err.Error(), nil)
	}
}

// workloads reports what workloads found since it was asked last.
func (r *campaign) workloads() {
	r.mu.Lock()
	from := r.told
	r.mu.Unlock()
	all := slices.Concat(tagged("C3", r.sessions.Bad()), tagged("C10", r.expiries.Bad()))
	if len(all) <= from {
		return
	}
	for _, v := range all {
		r.report(v[0], v[1])
	}
	r.mu.Lock()
	r.told = len(all)
	r.mu.Unlock()
}

// report tells what a workload found, unless it was told. Its first line says what.
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

// hold waits.
func hold(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
