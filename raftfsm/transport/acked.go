package transport

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/signal"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// acked records two indexes for each follower: the index up to which the follower's log is known to equal the log of
// this leader, and the newest commit index that was sent to the follower.
type acked struct {
	moved *signal.Signal

	mu   sync.Mutex
	upTo map[raft.ServerID]ack
}

// ack is what a follower has acknowledged to the leader of a term.
type ack struct {
	raftlog.Position        // the term of the leader, and the index of the newest acknowledged entry
	entry            uint64 // the term of that entry
	at               time.Time
	sent             uint64 // newest commit index sent, at most the last entry of its request; 0 = unknown
	// a request with only the header and the term of the last request
	request raft.AppendEntriesRequest
}

func newAcked() *acked { return &acked{moved: signal.New(), upTo: map[raft.ServerID]ack{}} }

// sending records that a request with its commit index is on its way to a follower.
func (a *acked) sending(id raft.ServerID, r *raft.AppendEntriesRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.upTo[id]; p.Term == r.Term {
		p.sent = max(p.sent, min(r.LeaderCommitIndex, end(r)))
		a.upTo[id] = p
	}
}

// failed records that a request may not have reached a follower, so that the commit index is sent again.
func (a *acked) failed(id raft.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.upTo[id]
	p.sent = 0
	a.upTo[id] = p
}

// reached handles a follower's answer to a heartbeat, which this server has sent as leader of the given term. If an
// earlier message to the follower has failed, the follower may not know the commit index. reached then makes the group
// announce the commit index again.
func (a *acked) reached(id raft.ServerID, term uint64) {
	a.mu.Lock()
	p := a.upTo[id]
	a.mu.Unlock()
	if p.Term == term && p.Index > 0 && p.sent == 0 {
		a.moved.Fire()
	}
}

// note records that a follower has acknowledged a request.
func (a *acked) note(id raft.ServerID, r *raft.AppendEntriesRequest) {
	p := ack{Position: raftlog.Position{Term: r.Term, Index: end(r)}, entry: r.PrevLogTerm, at: time.Now(),
		sent:    min(r.LeaderCommitIndex, end(r)),
		request: raft.AppendEntriesRequest{RPCHeader: r.RPCHeader, Term: r.Term}}
	if n := len(r.Entries); n > 0 {
		p.entry = r.Entries[n-1].Term
	}
	a.mu.Lock()
	if was := a.upTo[id]; was.Term == p.Term {
		p.sent = max(p.sent, was.sent)
	}
	a.upTo[id] = p
	a.mu.Unlock()
	a.moved.Fire()
}

// has reports whether a follower has acknowledged all entries up to the given index. An acknowledgement counts only if
// this server received it as leader of the given term, and not before the time earliest.
func (a *acked) has(id raft.ServerID, term, index uint64, earliest time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.upTo[id]
	return p.Term == term && p.Index >= index && !p.at.Before(earliest)
}

// unsent returns requests that announce the given commit index, and records them as sent. There is one request for each
// follower to which the index was not sent yet. Followers that have not acknowledged all entries up to this index in
// the given term are left out.
func (a *acked) unsent(term, commit uint64) map[raft.ServerID]*raft.AppendEntriesRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	requests := map[raft.ServerID]*raft.AppendEntriesRequest{}
	for id, p := range a.upTo {
		if p.Term != term || p.Index < commit || p.sent >= commit {
			continue
		}
		r := p.request
		r.PrevLogEntry, r.PrevLogTerm, r.LeaderCommitIndex = p.Index, p.entry, commit
		requests[id] = &r
		p.sent = commit
		a.upTo[id] = p
	}
	return requests
}

// end returns the index of the last entry of a request, or of the entry before it if the request has none.
func end(r *raft.AppendEntriesRequest) uint64 { return r.PrevLogEntry + uint64(len(r.Entries)) }
