package proof

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/faulttest"
	"github.com/quorate/quorate/internal/history"
)

// checkpoint runs the checks between faults. It waits until all nodes know each other, and then pauses the load. It
// checks that no acknowledged write is lost, and waits until all nodes have the same contents. It records failures as
// violations.
func (r *campaign) checkpoint(ctx context.Context) {
	limit, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	if err := r.cluster.Acquainted(limit); err != nil && ctx.Err() == nil {
		r.violated("C14", "nodes do not find each other: "+err.Error(), nil)
	}
	err := r.cluster.Quiet(func() error {
		if err := r.ledgers(limit); err != nil {
			return err
		}
		d, err := r.cluster.Digest(limit)
		if err != nil {
			r.violated("C7", "nodes do not hold the same: "+err.Error(), r.tails())
			return nil
		}
		r.mu.Lock()
		r.digested = d
		r.mu.Unlock()
		r.done("C7", len(r.cluster.Running()))
		if d.Applied != nil {
			r.done("C7 at one index", len(r.cluster.Running()))
		}
		r.Log("checkpoint: all nodes hold the same %d keys at %v: %s", d.Keys, d.Applied, d.Hash)
		return nil
	})
	if err != nil && ctx.Err() == nil {
		r.violated("C14", "a checkpoint: "+err.Error(), r.tails())
	}
}

// excuse is the time after the acknowledgement of an eventual write in which a change of leadership explains the loss
// of the write. A change up to 2 s before the acknowledgement explains the loss as well. A loss without such a change
// is a violation.
const excuse = 30 * time.Second

// ledgers checks that no acknowledged strong write is lost, and that a change of leadership explains each lost eventual
// write (see excuse). It records violations. An error means that the writes could not be read.
func (r *campaign) ledgers(ctx context.Context) error {
	missing, err := r.sure.Missing(ctx)
	if err != nil {
		return err
	}
	r.done("C6", r.sure.Acknowledged())
	if len(missing) > 0 {
		r.violated("C6", fmt.Sprintf("%d of %d acknowledged strong writes are lost", len(missing),
			r.sure.Acknowledged()), firsts(missing, r.times(r.sure, missing)))
		r.sure.Forget(missing)
	}
	if missing, err = r.eventual.Missing(ctx); err != nil {
		return err
	}
	r.done("C5", r.eventual.Acknowledged())
	when := r.times(r.eventual, missing)
	var unexplained []string
	var at []time.Duration
	for i, k := range missing {
		if !r.sampler.changed(when[i]-2*time.Second, when[i]+excuse) {
			unexplained, at = append(unexplained, k), append(at, when[i])
		}
	}
	if len(unexplained) > 0 {
		r.violated("C5", fmt.Sprintf("%d acknowledged eventual writes are lost although leadership did not change",
			len(unexplained)), firsts(unexplained, at))
	}
	r.eventual.Forget(missing)
	r.mu.Lock()
	r.excused += len(missing) - len(unexplained)
	r.mu.Unlock()
	return nil
}

// times returns the times at which the writes of the given keys were acknowledged, counted from the start of the
// campaign.
func (r *campaign) times(l *faulttest.Ledger, keys []string) []time.Duration {
	out := make([]time.Duration, len(keys))
	for i, t := range l.When(keys) {
		out[i] = t.Sub(r.begun)
	}
	return out
}

// firsts describes the first 50 of the lost keys, and counts the rest. The parameter at has the times at which the
// writes of the keys were acknowledged.
func firsts(keys []string, at []time.Duration) (out []string) {
	for i, k := range keys {
		if i == 50 {
			return append(out, fmt.Sprintf("and %d more", len(keys)-i))
		}
		out = append(out, fmt.Sprintf("%s, acknowledged at %s", k, at[i].Round(time.Millisecond)))
	}
	return out
}

// finish stops the load and runs the last checks. If the cluster has not recovered from its last fault, whole must be
// false. Then finish skips the checks that need all nodes, and ends the other checks after 10 s instead of 5 min.
func (r *campaign) finish(ctx context.Context, whole bool) {
	r.Log("the last checks")
	limit, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if !whole { // no node would answer
		limit, cancel = context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
	}
	r.sure.Stop()
	r.eventual.Stop()
	for _, text := range r.sessions.Stop() {
		r.report("C3", text)
	}
	if err := r.strong.Stop(limit); err != nil {
		r.violated("C14", err.Error(), nil)
	}
	r.linearizable(r.strong.History)
	for _, text := range r.watches.Stop(limit) {
		r.report("C15", text)
	}
	r.done("C15", r.watches.Events())
	r.locked()
	r.acted(limit, whole)
	for _, text := range r.topics.Stop(limit, whole) {
		r.report("C19", text)
	}
	r.done("C19", r.topics.History.Size())
	for _, text := range r.workflows.Stop(limit, whole) {
		r.report("C20", text)
	}
	r.done("C20", r.workflows.History.Size())
	late, err := r.expiries.Stop(limit)
	if err != nil {
		r.violated("C10", "an expired key: "+err.Error(), nil)
	}
	for _, text := range late {
		r.report("C10", text)
	}
	r.checks.Wait()
	if whole {
		r.settled(limit)
		r.checkpoint(limit)
		r.bounded(limit)
	}
	for _, f := range r.sure.Failed() {
		r.violated("C11", "a strong write did not succeed within a minute at any node: "+f, nil)
	}
	r.done("C3", r.sessions.Reads())
	r.done("C10", r.expiries.Kept())
}

// settled checks that nodes no longer mark responses as stale, now that all nodes are up again.
func (r *campaign) settled(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := r.sessions.Settle(ctx); err != nil {
		r.violated("C3", "the cluster is whole, but answers stay stale: "+err.Error(), nil)
	}
}

// locked stops the clients of locks and checks their history.
func (r *campaign) locked() {
	r.locks.Stop()
	r.done("C16", r.locks.History.Size())
	err := r.locks.History.Check(checkTime, os.TempDir())
	var n *history.NotLinearizable
	switch {
	case errors.As(err, &n):
		r.violated("C16", err.Error(), n.History)
	case err != nil:
		r.violated("C16", err.Error(), nil)
	}
}

// acted stops the clients of actors, reminders and jobs, and checks their histories.
func (r *campaign) acted(ctx context.Context, whole bool) {
	acted, fired := r.actors.Stop(ctx, whole)
	for _, text := range acted {
		r.report("C17", text)
	}
	for _, text := range fired {
		r.report("C18", text)
	}
	r.done("C17", r.actors.History.Size())
	r.done("C18", r.actors.Due.Size())
}

// The resources that an idle node may use.
const (
	mostOpen     = 200
	mostRoutines = 600
	mostMemory   = 900 << 20
)

// bounded checks that every running node has returned to a low number of open files and goroutines, and to low memory
// use. It waits for this up to 2 min per node (the constant patience). If a node still uses too much, bounded records a
// violation, and makes the node write its goroutine stacks to its log and exit.
func (r *campaign) bounded(ctx context.Context) {
	for _, n := range r.cluster.Running() {
		n.CloseIdle()
		limit, cancel := context.WithTimeout(ctx, patience)
		var text string
		err := faulttest.Until(limit, func() (err error) {
			text, err = atRest(limit, n)
			return err
		})
		cancel()
		if err != nil {
			r.violated("C12", n.Name+": "+err.Error(), nil)
			_ = n.Dump()
		}
		r.done("C12", 1)
		r.mu.Lock()
		r.result.Totals = append(r.result.Totals, Total{"at rest", text})
		r.mu.Unlock()
	}
}

// atRest describes how many open files and goroutines and how much memory a node uses. It returns an error if the node
// uses too much, or if the metrics of the node cannot be read in time.
func atRest(ctx context.Context, n *faulttest.Node) (text string, err error) {
	open, err := n.Open()
	if err != nil {
		return "", err
	}
	resident, err := n.Resident()
	if err != nil {
		return "", err
	}
	limit, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	m, err := n.Metrics(limit)
	if err != nil {
		return "", err
	}
	routines := m.Sum("go_goroutines")
	text = fmt.Sprintf("%s: %d files and connections, %.0f goroutines, %d MB", n.Name, open, routines, resident>>20)
	if open > mostOpen || routines > mostRoutines || resident > mostMemory {
		err = fmt.Errorf("it holds on to too much: %s", text)
	}
	return text, err
}

// sum sets the totals in the result. It is called when the campaign has ended.
func (r *campaign) sum() {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.result
	out.Histories = map[string]io.WriterTo{"actors.txt": r.actors.History, "due.txt": r.actors.Due,
		"locks.txt": r.locks.History, "topics.txt": r.topics.History,
		"workflows.txt": r.workflows.History}
	out.Took = time.Since(r.begun)
	out.Timeline = r.record.seconds()
	out.Requests = map[string]int{"strong": r.record.Strong, "eventual": r.record.Other,
		"of unknown outcome": r.record.Unknown, "refused": r.record.Refused}
	out.Changes, out.Elections, out.Stalls = r.sampler.changes, len(r.sampler.changes), r.sampler.stalls
	total := func(name, format string, args ...any) {
		out.Totals = append(out.Totals, Total{name, fmt.Sprintf(format, args...)})
	}
	names := counted()
	for _, metric := range slices.Sorted(maps.Keys(names)) {
		total(names[metric], "%.0f", r.sampler.sum(metric))
	}
	total("strong operations", "%s", r.strong.History)
	total("sessions", "%s", r.sessions)
	total("strong ledger", "%s", r.sure)
	total("eventual ledger", "%s; %d lost, all shortly before a change of leadership", r.eventual, r.excused)
	total("locks", "%s", r.locks.History)
	total("watches", "%s", r.watches)
	total("actors", "%s", r.actors.History)
	total("topics", "%s", r.topics.History)
	total("workflows", "%s", r.workflows.History)
	total("reminders and jobs", "%s", r.actors.Due)
	total("life times", "%s", r.expiries)
	total("state in the end", "%d keys at index %v, hash %s", r.digested.Keys, r.digested.Applied, r.digested.Hash)
	total("most memory of a node", "%d MB", r.sampler.resident>>20)
	total("most goroutines of a node", "%.0f", r.sampler.routines)
	for _, c := range classes() {
		out.Classes = append(out.Classes, ClassSummary{c.ID, c.Name, c.How, c.skipped, out.Faults[c.ID]})
		if c.skipped != "" {
			out.NotRun = append(out.NotRun, [2]string{c.ID + ", " + c.Name, c.skipped})
		}
		var took []time.Duration
		for _, p := range out.Played {
			if p.Class == c.ID {
				took = append(took, p.Healthy-p.Healed)
			}
		}
		if len(took) > 0 {
			out.Resumed[c.ID] = summed(took)
		}
	}
	r.checked["C1"] = r.strong.History.Size() // all were checked, most of them during the campaign
	out.Checks = r.summary()
}

// summary returns the guarantees that were checked, and how often.
func (r *campaign) summary() []Check {
	return []Check{
		{"C1", "strong operations are linearizable, for each family of keys (Porcupine)", r.checked["C1"],
			"operations"},
		{"C2", "the same through every node: leader, followers, sidecar", r.checked["C1"],
			"operations, at nodes chosen at random"},
		{"C3", "reads of a session never go back, with and without a token", r.checked["C3"], r.sessions.String()},
		{"C4", "sessions read their own writes", r.checked["C3"], "the same"},
		{"C5", "acknowledged eventual writes are lost only with a leader", r.checked["C5"], "keys read"},
		{"C6", "no acknowledged strong write is lost", r.checked["C6"], "keys read"},
		{"C7", "equal state at equal index on all nodes", r.checked["C7"],
			fmt.Sprintf("replicas read completely, %d of them at one index that did not change",
				r.checked["C7 at one index"])},
		{"C9", "a repeated request is applied once and has the same result", r.checked["C1"],
			"operations, some repeated"},
		{"C10", "nothing expires early", r.checked["C10"], r.expiries.String()},
		{"C11", "a client that retries a strong write succeeds within a minute", r.sure.Acknowledged(), "writes"},
		{"C12", "memory, goroutines and files are bounded after healing", r.checked["C12"], "nodes"},
		{"C13", "after every fault each node knows exactly the running instances of the application", r.checked["C13"],
			fmt.Sprintf("times a node, at the latest %s after the cluster was whole",
				r.slowest.Round(time.Millisecond))},
		{"C14", "no node is stuck: after every fault each serves a strong write, and all voters are present",
			r.checked["C14"], "times a node"},
		{"C15", "every watcher receives every acknowledged write of a watched key once and in order", r.checked["C15"],
			r.watches.String()},
		{"C16", "a lock has one owner, ends never early, and no write with an old token is applied (Porcupine)",
			r.checked["C16"], "operations on locks"},
		{"C17", "increments of actors are not lost, no two epochs write, and turns do not overlap", r.checked["C17"],
			r.actors.History.String()},
		{"C18", "reminders and jobs fire at least once, never early, and not after they were deleted",
			r.checked["C18"], r.actors.Due.String()},
		{"C19", "no acknowledged message is lost, keys keep their order, no message is both acknowledged and a dead " +
			"letter, and events equal committed transactions", r.checked["C19"], r.topics.History.String()},
		{"C20", "an acknowledged workflow completes, and one result of each activity is applied", r.checked["C20"],
			r.workflows.History.String()},
	}
}
