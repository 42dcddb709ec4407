package group

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// Confirmer queries other servers of the group, to confirm the leader's term. ConfirmTerm returns nil only if the given
// server runs raft and has answered during the call that it knows no higher term.
type Confirmer interface {
	ConfirmTerm(ctx context.Context, server raft.Server, term uint64) error
}

// ReadIndex is the result of Group.ReadIndex. For a linearizable read, wait until the local machine has applied
// Index, and then read with Now as the cluster time. The read sees every write that was acknowledged before
// Group.ReadIndex was called.
type ReadIndex struct {
	raftlog.Position
	Now uint64 // leader's cluster time, milliseconds
}

// reader returns read indexes on the leader. It does not depend on clocks.
//
// Invariant: a returned index covers every committed write that any leader acknowledged before the call.
//
// The algorithm is "ReadIndex" from section 6.4 of Ongaro's thesis:
//
//  1. The leader has committed an entry of its own term, so its commit index covers all earlier terms.
//  2. The leader records its commit index before it queries the other voters.
//  3. A majority of voters confirms that they know no higher term, so no later leader has committed anything.
//  4. The leader still leads in the same term.
//
// Steps 1 to 4 form a round. Reads that arrive during a round share the next round.
type reader struct {
	raft    *raft.Raft
	self    raft.ServerID
	confirm Confirmer
	clock   *clock
	ready   func(term uint64) bool // reports whether an entry of this term has been applied here
	timeout time.Duration
	obs     *groupMetrics

	confirmed atomic.Pointer[confirmation] // the newest successful round

	mu      sync.Mutex
	waiting []chan readResult
	wake    chan struct{}
	stop    chan struct{}
	wg      sync.WaitGroup
}

type readResult struct {
	index ReadIndex
	err   error
}

// confirmation describes a round in which a majority confirmed this leader. It contains the time when the round began,
// and the commit index that this leader read before it queried the other voters.
type confirmation struct {
	at    time.Time
	index uint64
}

func (r *reader) start() {
	r.wake, r.stop = make(chan struct{}, 1), make(chan struct{})
	r.wg.Add(1)
	go r.run()
}

// get returns a read index. Its errors are those of Group.ReadIndex.
func (r *reader) get(ctx context.Context) (ReadIndex, error) {
	if index, err, alone := r.alone(); alone || err != nil {
		return index, err
	}
	got := make(chan readResult, 1)
	r.mu.Lock()
	r.waiting = append(r.waiting, got)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	select {
	case res := <-got:
		return res.index, res.err
	case <-ctx.Done():
		return ReadIndex{}, &fault.Error{Code: fault.Timeout, Op: "group.ReadIndex",
			Msg: "no majority of voters confirmed this leader in time", Err: ctx.Err()}
	case <-r.stop:
		return ReadIndex{}, errClosing()
	}
}

// note performs steps 1 and 2 of the algorithm (see reader). It returns the term and the commit index of this leader,
// or fault.NotLeader.
func (r *reader) note() (ReadIndex, error) {
	term := r.raft.CurrentTerm()
	if r.raft.State() != raft.Leader || !r.ready(term) {
		return ReadIndex{}, errNotLeader("group.ReadIndex")
	}
	return ReadIndex{Position: raftlog.Position{Term: term, Index: r.raft.CommitIndex()}, Now: r.clock.leader()}, nil
}

func errNotLeader(op string) error {
	return fault.New(fault.NotLeader, op, "this server does not lead the group, or has led it for too short a time")
}

// same performs step 4 of the algorithm (see reader): it checks that this server still leads in the given term.
func (r *reader) same(term uint64) error {
	if r.raft.CurrentTerm() != term || r.raft.State() != raft.Leader {
		return errNotLeader("group.ReadIndex")
	}
	return nil
}

// alone returns a read index at once if this server is the only voter, because it is then a majority by itself. The
// last result is false if there are other voters, or if this server is not a voter.
func (r *reader) alone() (ReadIndex, error, bool) {
	others, self := r.voters()
	if len(others) > 0 || !self {
		return ReadIndex{}, nil, false
	}
	index, err := r.note()
	if err == nil {
		err = r.same(index.Term)
	}
	return index, err, true
}

// voters returns the other voters of the newest configuration, committed or not. Raft counts votes with the same
// configuration. self reports whether this server is a voter.
func (r *reader) voters() (others []raft.Server, self bool) {
	for _, s := range r.raft.GetConfiguration().Configuration().Servers {
		switch {
		case s.Suffrage != raft.Voter:
		case s.ID == r.self:
			self = true
		default:
			others = append(others, s)
		}
	}
	return others, self
}

func (r *reader) run() {
	defer r.wg.Done()
	for {
		select {
		case <-r.wake:
		case <-r.stop:
			return
		}
		r.mu.Lock()
		round := r.waiting
		r.waiting = nil
		r.mu.Unlock()
		if len(round) == 0 {
			continue
		}
		index, err := r.round()
		r.obs.readRound(len(round), err)
		for _, w := range round {
			w <- readResult{index, err}
		}
	}
}

// round confirms leadership once for all reads that were waiting when the round began.
func (r *reader) round() (ReadIndex, error) {
	begun := time.Now()
	index, err := r.note()
	if err != nil {
		return ReadIndex{}, err
	}
	others, self := r.voters()
	if err := r.majority(index.Term, others, self); err != nil {
		return ReadIndex{}, err
	}
	if err := r.same(index.Term); err != nil {
		return ReadIndex{}, err
	}
	r.confirmed.Store(&confirmation{at: begun, index: index.Index})
	return index, nil
}

// majority performs step 3 of the algorithm (see reader). It returns nil if a majority of voters confirm that they know
// no higher term than the given one. The parameter self is true if this server is a voter. Late answers to the queries
// of earlier calls do not count.
func (r *reader) majority(term uint64, others []raft.Server, self bool) error {
	total, have := len(others), 0
	if self {
		total, have = total+1, 1
	}
	need := total/2 + 1
	if have >= need {
		return nil
	}
	if r.confirm == nil {
		return fault.New(fault.Unavailable, "group.ReadIndex", "there are other voters, but no way to ask them")
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	answers := make(chan error, len(others))
	for _, s := range others {
		go func() { answers <- r.confirm.ConfirmTerm(ctx, s, term) }()
	}
	var last error
	for range others {
		select {
		case err := <-answers:
			if err != nil {
				last = err
				continue
			}
			if have++; have >= need {
				return nil
			}
		case <-r.stop:
			return errClosing()
		}
	}
	return &fault.Error{Code: fault.Unavailable, Op: "group.ReadIndex",
		Msg: "no majority of voters confirmed this leader", Err: last}
}

func (r *reader) close() {
	close(r.stop)
	r.wg.Wait()
}
