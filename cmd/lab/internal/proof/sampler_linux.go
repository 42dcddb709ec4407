package proof

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/faulttest"
)

// counted returns the metrics that the report sums over all nodes and restarts. A key of the map is the name of a
// metric, and the value is its description in the report.
func counted() map[string]string {
	return map[string]string{
		"quorate_raft_elections_total":            "elections stood for",
		"quorate_raft_snapshots_installed_total":  "snapshots installed",
		"quorate_raft_eventual_writes_lost_total": "eventual writes that servers counted as lost",
		"quorate_store_retries_total":             "requests that nodes sent again",
		"quorate_store_stale_reads_total":         "reads marked stale",
	}
}

// sampler samples the nodes continuously. It is safe for concurrent use.
type sampler struct {
	cluster *faulttest.Cluster
	begun   time.Time
	stop    context.CancelFunc
	wg      sync.WaitGroup

	mu sync.Mutex
	// guarded by mu, as are the fields below: by metric and incarnation, the last value
	counts   map[string]map[string]float64
	terms    map[uint64]uint64 // by group
	changes  []Election
	resident uint64 // maximum
	routines float64
	stalls   []Stall
}

func startSampler(c *faulttest.Cluster, begun time.Time) *sampler {
	ctx, stop := context.WithCancel(context.Background())
	s := &sampler{cluster: c, begun: begun, stop: stop, counts: map[string]map[string]float64{},
		terms: map[uint64]uint64{}}
	s.wg.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for round := 0; ; round++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				s.leaders(ctx)
				if round%4 == 0 {
					s.metrics(ctx)
				}
			}
		}
	})
	s.wg.Go(func() { s.machine(ctx) })
	return s
}

// machine records stalls of the machine: times of more than 300 ms in which the operating system did not run this
// process.
func (s *sampler) machine(ctx context.Context) {
	const every, much = 20 * time.Millisecond, 300 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if long := now.Sub(last) - every; long > much {
			s.mu.Lock()
			s.stalls = append(s.stalls, Stall{last.Sub(s.begun), long})
			s.mu.Unlock()
		}
		last = now
	}
}

func (s *sampler) leaders(ctx context.Context) {
	for _, n := range s.cluster.Servers() {
		status, err := n.Status(ctx)
		if err != nil {
			continue
		}
		s.mu.Lock()
		for _, g := range status.Groups {
			if g.State == "leader" && g.Term > s.terms[g.ID] {
				if s.terms[g.ID] > 0 {
					s.changes = append(s.changes, Election{time.Since(s.begun), g.ID, g.Term, n.Name})
				}
				s.terms[g.ID] = g.Term
			}
		}
		s.mu.Unlock()
	}
}

func (s *sampler) metrics(ctx context.Context) {
	for _, n := range s.cluster.Running() {
		limit, cancel := context.WithTimeout(ctx, time.Second)
		life := fmt.Sprint(n.Name, n.Pid())
		text, err := n.Metrics(limit)
		cancel()
		if err != nil {
			continue
		}
		resident, _ := n.Resident() // 0 if it has just ended
		s.mu.Lock()
		for metric := range counted() {
			if s.counts[metric] == nil {
				s.counts[metric] = map[string]float64{}
			}
			s.counts[metric][life] = text.Sum(metric)
		}
		s.resident, s.routines = max(s.resident, resident), max(s.routines, text.Sum("go_goroutines"))
		s.mu.Unlock()
	}
}

// sum returns the sum of a metric over all incarnations (processes) of all nodes.
func (s *sampler) sum(metric string) (sum float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.counts[metric] {
		sum += v
	}
	return sum
}

// changed reports whether the sampler saw a change of leadership between the times earliest and latest. Both times are
// counted from the start of the campaign.
func (s *sampler) changed(earliest, latest time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.changes, func(e Election) bool { return e.At >= earliest && e.At <= latest })
}

func (s *sampler) end() {
	s.stop()
	s.wg.Wait()
}
