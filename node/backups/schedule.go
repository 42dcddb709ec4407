package backups

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
)

const (
	look       = time.Second      // interval at which the schedule looks for work
	renewEvery = 10 * time.Second // interval at which the claim of a running backup is renewed
	// loseAfter is how long a backup may continue after the last renewal of its claim. It is well below takeAfter, so
	// the backup ends before another node can take over the claim.
	loseAfter  = 40 * time.Second
	takeAfter  = time.Minute      // another node takes over a claim that has not been renewed for this time
	retryAfter = 5 * time.Minute  // time between attempts after a failure, at most one period
	callTime   = 10 * time.Second // timeout of a read or a write of the record
)

// Cluster is the replicated store as the schedule uses it.
type Cluster interface {
	// Leads reports whether this node leads the group that holds the record.
	Leads() bool
	// Record reads the record with a linearizable read. Revision 0 means that there is none.
	Record(ctx context.Context) (text []byte, revision uint64, err error)
	// SetRecord replaces the record and returns its new revision. If the current revision is not the given one, it
	// returns fault.Conflict.
	SetRecord(ctx context.Context, text []byte, revision uint64) (uint64, error)
	// LocalRecord reads the record from this node's replica, which may be behind.
	LocalRecord() ([]byte, error)
	// SaveBackup writes a backup of all groups.
	SaveBackup(ctx context.Context, w io.Writer) error
}

// Config configures the schedule. If Every is 0, there are no scheduled backups.
type Config struct {
	Directory string   // where backups are stored; empty = Command stores them
	Command   []string // stores, reads and removes backups
	Every     time.Duration
	Keep      int    // how many backups to keep
	Verify    bool   // read each backup again after it was written
	KeyFile   string // key that encrypts the backups; empty = not encrypted
}

// Options are the dependencies and settings of a Schedule. All are required, except those in Config.
type Options struct {
	Config
	Node       string // id of this node
	Prefix     string // of the names of backups: the name of the cluster
	Cluster    Cluster
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time
}

// Schedule writes backups regularly. It writes them only while this node leads the Raft group that stores the record of
// backups, see Cluster.Leads. A Schedule is safe for concurrent use.
type Schedule struct {
	opts    Options
	target  target
	metrics *metrics
	latest  atomic.Pointer[record] // the record that this node has read or written last
	// the claim that was read last, and the time since which it is unchanged; used only by Run
	other claim
	since time.Time
}

// New returns a Schedule. If Options.Every is 0, the Schedule writes no backups and only registers its metrics.
func New(o Options) *Schedule {
	s := &Schedule{opts: o, metrics: newMetrics(o.Registerer, o.Every)}
	s.latest.Store(&record{})
	if len(o.Command) > 0 {
		s.target = command{args: o.Command}
	} else {
		s.target = directory{path: o.Directory, prefix: o.Prefix}
	}
	return s
}

// Run writes backups until ctx ends. It returns at once if there is no schedule.
func (s *Schedule) Run(ctx context.Context) {
	if s.opts.Every <= 0 {
		return
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		s.step(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// step reads the record. If this node leads and a backup is due, step takes the claim and writes the backup.
func (s *Schedule) step(ctx context.Context) {
	if text, err := s.opts.Cluster.LocalRecord(); err == nil {
		if r, err := decode(text); err == nil {
			s.show(r)
		}
	}
	if !s.opts.Cluster.Leads() || !s.latest.Load().due(s.opts.Now(), s.opts.Every) {
		return
	}
	h, err := s.take(ctx) // after an error, the claim may be stored; another node then takes it over
	switch {
	case fault.Is(err, fault.Corrupt):
		s.opts.Logger.Warn("the backup cannot begin", "error", fault.Text(err))
	case err != nil:
		s.opts.Logger.Debug("the backup cannot begin yet", "error", fault.Text(err))
	case h != nil:
		s.show(h.record)
		s.run(ctx, h)
		s.show(h.record)
	}
}

// show makes the record r visible in metrics and status.
func (s *Schedule) show(r record) {
	s.latest.Store(&r)
	s.metrics.show(r)
}

// take writes the claim of this node for the next backup to the record. It returns nil if no backup is due, or if
// another run has the claim.
func (s *Schedule) take(ctx context.Context) (*holding, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	text, revision, err := s.opts.Cluster.Record(ctx)
	if err != nil {
		return nil, err
	}
	r, err := decode(text)
	if err != nil || !r.due(s.opts.Now(), s.opts.Every) || s.claimed(r.Claim) {
		return nil, err
	}
	h := &holding{cluster: s.opts.Cluster, id: rand.Text(), record: r, revision: revision}
	h.record.Claim = &claim{Node: s.opts.Node, ID: h.id}
	return h, h.store(ctx)
}

// claimed reports whether another run still has the claim c. It returns false if this node has seen c unchanged for
// takeAfter, because the node of the other run has then probably stopped.
func (s *Schedule) claimed(c *claim) bool {
	if c == nil {
		return false
	}
	if *c != s.other {
		s.other, s.since = *c, time.Now()
	}
	return time.Since(s.since) < takeAfter
}

// run writes one backup, records the outcome and removes old backups.
func (s *Schedule) run(ctx context.Context, h *holding) {
	begin := s.opts.Now()
	var m *made
	err := h.while(ctx, func(ctx context.Context) (err error) {
		m, err = s.write(ctx, begin)
		return err
	})
	if err == nil {
		err = s.publish(ctx, h, m)
	}
	if err != nil {
		if m != nil {
			m.stored.discard()
		}
		s.ended(ctx, h, err)
		return
	}
	s.done(ctx, h, begin, m.saved)
}

// publish gives a complete backup its final name. Before that, it renews the claim. If another node has taken over the
// claim, for example while this node was paused, publish returns an error.
func (s *Schedule) publish(ctx context.Context, h *holding, m *made) error {
	if err := h.extend(ctx); err != nil {
		return errors.Join(errLost, err)
	}
	return m.stored.publish()
}

// done logs a complete backup, removes old backups, and records both.
func (s *Schedule) done(ctx context.Context, h *holding, begin time.Time, last saved) {
	s.metrics.runs.WithLabelValues(outcomeOK).Inc()
	s.opts.Logger.Info("scheduled backup written", "name", last.Name, "to", s.target.String(), "keys", last.Keys,
		"bytes", last.Bytes, "verified", last.Verified, "took", s.opts.Now().Sub(begin).Round(time.Millisecond))
	if len(s.opts.Command) > 0 {
		h.record.Stored = append(slices.Clone(h.record.Stored), last.Name)
	}
	names := h.record.Stored
	_ = h.while(ctx, func(ctx context.Context) error {
		names = s.removeOld(ctx, names)
		return nil
	})
	err := h.release(ctx, func(r *record) {
		r.Period, r.Last, r.Failed, r.Stored = periodOf(begin, s.opts.Every).Unix(), &last, nil, names
	})
	if err != nil {
		s.opts.Logger.Warn("the scheduled backup is complete but could not be recorded, so another one follows",
			"error", fault.Text(err))
	}
}

// removeOld removes old backups and keeps the newest Options.Keep ones. If a command stores the backups, the parameter
// names lists the stored backups, and the result left lists those that remain. Failures are only logged and counted,
// because the next backup tries again.
func (s *Schedule) removeOld(ctx context.Context, names []string) (left []string) {
	left, err := s.target.trim(ctx, names, s.opts.Keep)
	s.metrics.removed(err)
	if err != nil {
		s.opts.Logger.Warn("old backups could not be removed", "to", s.target.String(), "error", fault.Text(err),
			"hint", "remove them by hand if the space is needed; the next backup tries again")
	}
	return left
}

// ended logs and counts a backup that was not written. If the backup has failed, ended also stores the failure in the
// record. If another node may have taken the claim, or ctx has ended, the record gets no failure.
func (s *Schedule) ended(ctx context.Context, h *holding, err error) {
	switch {
	case errors.Is(err, errLost):
		s.metrics.runs.WithLabelValues(outcomeLost).Inc()
		s.opts.Logger.Warn("the scheduled backup was given up", "error", fault.Text(err))
		return
	case ctx.Err() != nil: // the node stops
		s.metrics.runs.WithLabelValues(outcomeLost).Inc()
		_ = h.release(ctx, func(*record) {})
		return
	}
	s.metrics.runs.WithLabelValues(outcomeFailed).Inc()
	var f *fault.Error
	hint := "see docs/troubleshooting.md#quoratebackuplate"
	if errors.As(err, &f) && f.Hint != "" {
		hint = f.Hint
	}
	s.opts.Logger.Error("the scheduled backup failed", "to", s.target.String(), "error", fault.Text(err), "hint", hint,
		"next_attempt_in", min(s.opts.Every, retryAfter))
	why := failure{Node: s.opts.Node, Time: s.opts.Now().UTC(), Error: fault.Text(err)}
	_ = h.release(ctx, func(r *record) { r.Failed = &why }) // if this fails, the claim expires after takeAfter
}
