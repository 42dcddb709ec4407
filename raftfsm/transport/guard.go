package transport

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// Guard wraps the transport of a group. It enforces rules that work around defects and limitations of hashicorp/raft:
//
//  1. Only raft's main loop changes raft's state for a heartbeat (hashicorp/raft#695). Guard answers a heartbeat of the
//     known leader and term, and passes a copy to the main loop, which updates the time of the last contact. The main
//     loop answers all other heartbeats.
//  2. A leader with a stalled disk stops sending (hashicorp/raft#503). Otherwise raft would still send heartbeats while
//     its main loop hangs in a write, and no other server would become the leader.
//  3. Appends are not pipelined (hashicorp/raft#612).
//  4. A snapshot is not installed if the log already has the snapshot's last entry, or if this server has a newer
//     snapshot (see Verdict).
//  5. A request makes a follower commit entries only up to the end of the request, because the leader has compared the
//     logs only up to there. Raft would commit up to the leader's commit index. This could include entries of a
//     deposed leader at the end of the follower's log.
//  6. If a snapshot replaces a log that it contradicts, the entries of that log count as discarded (see
//     raftlog.Discarded).
//  7. A leader passes a follower's successful response to raft only when the leader's own disk has the entries of the
//     request. Raft counts the leader's copy when StoreLogs returns, which can be earlier (see unsynced in raftlog).
//     Without this rule, raft could commit an entry that the leader loses in a crash.
//  8. A request with a damaged entry is refused before raft sees it. Raft would compare the entry with the log, and
//     could delete acknowledged entries before the log refuses the damaged one.
//  9. A server may vote for a candidate that is not a voter in the server's newest configuration, because the candidate
//     may have a newer one (see Ongaro, Consensus: Bridging Theory and Practice, section 4.1). The candidate's log must
//     still be at least as new as the server's. Without this rule, raft would refuse the vote. A group that needs this
//     vote for a majority could then not elect a leader.
//  10. This server exchanges messages with another server only after that server has reported what it has seen of
//     earlier incarnations of this server (see Witness).
//  11. A server sends nothing as leader of an earlier term than its own. After a leader is deposed, raft may send one
//     more request, with entries or a snapshot of the next term. A follower that stored such data before the next term
//     would refuse its own data after a restart (see raftlog.CheckTerm).
//
// Guard also starts elections that cannot wait for raft's own timeouts, and records the commit indexes that leaders
// announce.
type Guard struct {
	inner    raft.Transport
	limit    time.Duration // how long a write may stall before this server stops sending
	consumer chan raft.RPC
	beats    chan raft.RPC // capacity 1: the copy of a heartbeat, or the request of Campaign, for the main loop
	acked    *acked

	log   Log
	group Follower
	state State
	peers Peers
	off   Off

	started chan struct{} // closed when raft and the group can be called
	stop    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
	sending sync.WaitGroup // announcements in flight
}

// Off selects rules of Guard to disable, for tests that show why the rules are needed.
type Off struct {
	Heartbeats  bool // raft's own fast path answers heartbeats
	CommitIndex bool // a follower commits up to the commit index of its leader
	Candidates  bool // a candidate that is no voter of this server's configuration gets no vote
}

// Log is the part of this server's log that the transport needs.
type Log interface {
	// Stalled returns how long a write has been in flight; 0 = none.
	Stalled() time.Duration
	// WaitDurable waits until this server's disk has the entries up to the given index.
	WaitDurable(index uint64) error
	// Rebase adapts an append to a log that a snapshot has replaced.
	Rebase(r *raft.AppendEntriesRequest) *raft.AppendEntriesRequest
	// Last returns the index of the newest entry.
	Last() uint64
	// Retained returns the record of the entries that the log keeps for followers that are being sent a snapshot.
	Retained() *raftlog.Retained
}

// Follower is the part of the group that Guard needs to process requests. Guard calls it only after Start.
type Follower interface {
	// Term returns the current term of this server. An entry of a later term is stored only after Term has changed.
	Term() uint64
	// Known returns the last log index, and whether this server follows the given leader in the given term.
	Known(term uint64, leader raft.ServerID) (lastLog uint64, ok bool)
	// Announced records the commit index that the leader of the given term has sent. Only one goroutine calls it.
	Announced(term, commit uint64)
	// Judge decides whether to install a snapshot sent by a leader.
	Judge(r *raft.InstallSnapshotRequest) Verdict
	// FollowerIsAhead records that a follower has a newer snapshot than this leader.
	FollowerIsAhead()
	// KnownVoter returns a voter of the newest configuration of this server, or "" if there is none.
	KnownVoter() raft.ServerID
	// Abstains reports whether this server leaves the present election to others.
	Abstains() bool
}

// State is the part of the group that compares and replaces the state of this server.
type State interface {
	// Take reports whether a request is a transfer of state, which Raft must not see. It does not wait.
	Take(rpc raft.RPC, r *raft.InstallSnapshotRequest) bool
	// Wrong reports whether the local state must not be sent to others.
	Wrong() bool
}

// Peers decides with which servers this server may exchange messages. It also records the terms and commit indexes
// that these servers have sent.
type Peers interface {
	// Passes returns nil if messages may be sent to a server.
	Passes(id raft.ServerID) error
	// PassesFrom returns nil if messages of a server may be accepted.
	PassesFrom(id raft.ServerID) error
	// Note records what a server has shown about itself, and returns what was recorded before.
	Note(id raft.ServerID, s raftlog.Seen) (before raftlog.Seen)
}

var (
	_ raft.Transport   = (*Guard)(nil)
	_ raft.WithPreVote = (*Guard)(nil)
)

// New returns a Guard around the given transport. limit is how long a log write may stall before this server stops
// sending. The other parameters are the parts of the group that Guard uses.
func New(inner raft.Transport, limit time.Duration, l Log, f Follower, s State, p Peers) *Guard {
	return &Guard{
		inner: inner, limit: limit, log: l, group: f, state: s, peers: p, acked: newAcked(),
		consumer: make(chan raft.RPC), beats: make(chan raft.RPC, 1),
		started: make(chan struct{}), stop: make(chan struct{}),
	}
}

// SwitchOff disables the rules that off selects. Call it before Raft is created.
func (g *Guard) SwitchOff(off Off) { g.off = off }

// ReplaceLog passes the log to the given function, and uses the result in its place. It is for tests. Call it before
// Raft is created.
func (g *Guard) ReplaceLog(change func(Log) Log) { g.log = change(g.log) }

// UpTo reports whether a follower has acknowledged all entries up to the given index. It counts only acknowledgements
// that this server has received as leader of the given term, and not before earliest.
func (g *Guard) UpTo(id raft.ServerID, term, index uint64, earliest time.Time) bool {
	return g.acked.has(id, term, index, earliest)
}

// Moved returns a channel that is closed when a follower acknowledges a request. The channel is also closed when a
// follower that may not know the commit index answers a heartbeat.
func (g *Guard) Moved() <-chan struct{} { return g.acked.moved.Wait() }

// Verdict is what a follower does with a snapshot.
type Verdict uint8

const (
	Install     Verdict = iota // pass it to raft
	AlreadyHeld                // the log has the last entry of the snapshot: acknowledge it and change nothing
	// Outdated means that this server has a newer snapshot. This server refuses the received snapshot, so that the
	// leader sends a newer one.
	Outdated
)

// Start lets requests through to raft. From then on Guard calls the interfaces of the group.
func (g *Guard) Start() {
	g.wg.Add(1)
	go g.forward()
	close(g.started)
}

// forward passes requests from the inner transport, and copies of heartbeats, to raft's main loop. It runs until
// Close.
func (g *Guard) forward() {
	defer g.wg.Done()
	for {
		var rpc raft.RPC
		select {
		case rpc = <-g.inner.Consumer():
			if g.settled(&rpc) {
				continue
			}
		case rpc = <-g.beats:
		case <-g.stop:
			return
		}
		select {
		case g.consumer <- rpc:
		case <-g.stop:
			return
		}
	}
}

// settled applies the rules of Guard to a request, and may change the request. It returns true if raft must not get the
// request, because it was already answered or State.Take answers it later.
func (g *Guard) settled(rpc *raft.RPC) bool {
	if h, ok := rpc.Command.(raft.WithRPCHeader); ok && !g.isTransfer(rpc.Command) {
		from := raft.ServerID(h.GetRPCHeader().ID)
		if err := g.peers.PassesFrom(from); err != nil {
			if rpc.Reader != nil {
				_, _ = io.Copy(io.Discard, rpc.Reader)
			}
			rpc.Respond(nil, err)
			return true
		}
		g.observe(from, rpc.Command)
	}
	switch req := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		if !IsHeartbeat(req) {
			if err := intact(req.Entries); err != nil {
				rpc.Respond(nil, err)
				return true
			}
			g.group.Announced(req.Term, req.LeaderCommitIndex)
			if !g.off.CommitIndex {
				req = compared(req)
			}
			rpc.Command = g.log.Rebase(req)
		}
	case *raft.RequestVoteRequest:
		c := *req
		c.ID = g.eligible(c.ID)
		rpc.Command = &c
	case *raft.RequestPreVoteRequest:
		c := *req
		c.ID = g.eligible(c.ID)
		rpc.Command = &c
	case *raft.InstallSnapshotRequest:
		if g.state.Take(*rpc, req) {
			return true
		}
		if v := g.group.Judge(req); v != Install {
			_, _ = io.Copy(io.Discard, rpc.Reader) // the connection is used again afterwards
			rpc.Respond(&raft.InstallSnapshotResponse{
				RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax},
				Term:      req.Term,
				Success:   v == AlreadyHeld,
			}, nil)
			return true
		}
	}
	return false
}

// eligible returns the id that raft gets in place of a candidate's id. This is the id of any voter of the configuration
// or, if there is none, the candidate's own id. Raft only checks that the id belongs to a voter (see rule 9 of Guard).
func (g *Guard) eligible(candidate []byte) []byte {
	if g.off.Candidates {
		return candidate
	}
	return []byte(cmp.Or(g.group.KnownVoter(), raft.ServerID(candidate)))
}

// isTransfer reports whether a request is a transfer of state, which has term 0 (see State.Take).
func (g *Guard) isTransfer(command any) bool {
	r, ok := command.(*raft.InstallSnapshotRequest)
	return ok && r.Term == 0
}

// observe records in g.peers the term and the commit index of a request. The sender has stored this term durably.
// Pre-votes are not recorded, because their sender does not store the term.
func (g *Guard) observe(from raft.ServerID, command any) {
	switch req := command.(type) {
	case *raft.AppendEntriesRequest:
		g.peers.Note(from, raftlog.Seen{Term: req.Term, Committed: req.LeaderCommitIndex})
	case *raft.RequestVoteRequest:
		g.peers.Note(from, raftlog.Seen{Term: req.Term})
	}
}

// intact returns an error if an entry does not match its checksum.
func intact(entries []*raft.Log) error {
	for _, l := range entries {
		if len(l.Extensions) == 0 {
			continue // the log adds the checksum
		}
		if err := raftlog.Verify(l); err != nil {
			return err
		}
	}
	return nil
}

// compared returns r with its commit index limited to the last entry that the leader has compared with the
// follower's log. This is the last entry of r, or the previous entry if r has no entries.
func compared(r *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	if r.LeaderCommitIndex <= end(r) {
		return r
	}
	c := *r
	c.LeaderCommitIndex = end(r)
	return &c
}

// IsHeartbeat reports whether a request has no entries, no previous entry and no commit index.
func IsHeartbeat(r *raft.AppendEntriesRequest) bool {
	return len(r.Entries) == 0 && r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && r.LeaderCommitIndex == 0
}

// Campaign makes this server start an election at once, without a pre-vote. The other servers vote even if they
// still know a leader, so an unnecessary election deposes a working leader. Use it only if this server is the only
// voter, or if its leader no longer runs or no longer leads.
func (g *Guard) Campaign() {
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}
	rpc := raft.RPC{Command: &raft.TimeoutNowRequest{RPCHeader: header}, RespChan: make(chan raft.RPCResponse, 1)}
	select {
	case g.beats <- rpc:
	case <-g.stop:
	}
}

// Consumer returns the channel from which raft receives requests.
func (g *Guard) Consumer() <-chan raft.RPC { return g.consumer }

// SetHeartbeatHandler implements raft.Transport. The Guard answers heartbeats itself. It uses raft's handler only if
// Off.Heartbeats is set.
func (g *Guard) SetHeartbeatHandler(own func(raft.RPC)) {
	if g.off.Heartbeats {
		g.inner.SetHeartbeatHandler(own)
		return
	}
	g.inner.SetHeartbeatHandler(g.heartbeat)
}

// heartbeat handles a heartbeat on the transport's goroutine. It answers a heartbeat of the known leader and term at
// once, without raft's main loop, and passes a copy to that loop. Any other heartbeat is passed to the main loop,
// which answers it.
func (g *Guard) heartbeat(rpc raft.RPC) {
	select {
	case <-g.started:
	default:
		rpc.Respond(nil, fault.New(fault.Unavailable, "group.heartbeat", "the group is being opened"))
		return
	}
	req, ok := rpc.Command.(*raft.AppendEntriesRequest)
	if ok {
		if err := g.peers.PassesFrom(raft.ServerID(req.ID)); err != nil {
			rpc.Respond(nil, err)
			return
		}
		g.observe(raft.ServerID(req.ID), req)
		if last, same := g.group.Known(req.Term, raft.ServerID(req.ID)); same {
			rpc.Respond(&raft.AppendEntriesResponse{RPCHeader: req.RPCHeader, Term: req.Term, LastLog: last,
				Success: true}, nil)
			beat := *req
			select {
			case g.beats <- raft.RPC{Command: &beat, RespChan: make(chan raft.RPCResponse, 1)}:
			default: // another copy is already waiting
			}
			return
		}
	}
	select {
	case g.consumer <- rpc:
	case <-g.stop:
		rpc.Respond(nil, fault.New(fault.Unavailable, "group.heartbeat", "the group is closing"))
	}
}

// silenced returns an error if this server must send nothing as leader of the given term. This is the case while the
// local disk hangs, if the server knows a later term, and after Close. silenced first waits for Start or Close.
func (g *Guard) silenced(term uint64) error {
	select {
	case <-g.started: // a server that is the only voter may lead before Start
	case <-g.stop:
		return fault.New(fault.Unavailable, "group.transport", "this server stops")
	}
	if now := g.group.Term(); now > term {
		return fault.New(fault.NotLeader, "group.transport",
			fmt.Sprintf("this server led in term %d, and the term is %d now", term, now))
	}
	d := g.log.Stalled()
	if d <= g.limit {
		return nil
	}
	return &fault.Error{Code: fault.Unavailable, Op: "group.heartbeat",
		Msg: "a log write has been hanging for " + d.Round(time.Millisecond).String() +
			"; this server stops sending so that another one can lead"}
}

// The first and the last pause after which AppendEntries repeats a request that was not delivered. Each pause is twice
// the previous one.
const (
	firstRepeat = 10 * time.Millisecond
	lastRepeat  = 160 * time.Millisecond
)

// AppendEntries sends entries or a heartbeat, unless the local disk hangs. If a follower accepts entries, AppendEntries
// returns only when the local disk has these entries, too (see rule 7 of Guard).
//
// AppendEntries repeats a request that was not delivered, up to five times, with pauses of 310 ms in total. Raft itself
// would wait longer, but a server that has just started refuses requests only for some milliseconds (see Witness). A
// follower may therefore receive a request twice, which does no harm.
func (g *Guard) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	if IsHeartbeat(args) {
		return g.beat(id, to, args, resp)
	}
	// raft bounds only the number of the entries, and not their bytes
	if fit := bounded(args.Entries); len(fit) < len(args.Entries) {
		args.Entries = fit
	}
	for pause := firstRepeat; ; pause *= 2 {
		err := g.deliver(id, to, args, resp)
		if err == nil {
			break
		}
		if pause > lastRepeat || g.silenced(args.Term) != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-g.stop:
			return err
		}
		*resp = raft.AppendEntriesResponse{}
	}
	if !resp.Success {
		return nil
	}
	last := end(args)
	if len(args.Entries) > 0 {
		if err := g.log.WaitDurable(last); err != nil {
			return err
		}
	}
	g.acked.note(id, args)
	g.peers.Note(id, raftlog.Seen{Term: args.Term, Matched: raftlog.Position{Term: args.Term, Index: last}})
	g.log.Retained().Reached(id, last, g.log.Last())
	return nil
}

// beat sends a heartbeat, unless the local disk hangs. A follower that missed an earlier message, for example because
// it was restarted, may not know the commit index. When such a follower answers a heartbeat, beat makes the group
// announce the commit index again.
func (g *Guard) beat(id raft.ServerID, address raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	err := errors.Join(g.silenced(args.Term), g.peers.Passes(id))
	if err == nil {
		err = g.inner.AppendEntries(id, address, args, resp)
	}
	if err != nil {
		g.acked.failed(id)
		return err
	}
	g.acked.reached(id, args.Term)
	return nil
}

// deliver sends a request with entries or a commit index once, unless the local disk hangs.
func (g *Guard) deliver(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	if err := errors.Join(g.silenced(args.Term), g.peers.Passes(id)); err != nil {
		return err
	}
	g.acked.sending(id, args)
	err := g.inner.AppendEntries(id, to, args, resp)
	if err != nil || !resp.Success {
		g.acked.failed(id)
	}
	return err
}

// Announce sends a commit index to the followers that have all entries up to this index, unless it was already sent to
// them. These followers would otherwise learn the commit index only from the next append. term is the term in which
// this server leads, and commit is a commit index of that term. Announce does not wait for the answers.
//
// An announcement is a valid append without entries, so it does no harm if it arrives late or twice. The previous entry
// that it names is one that the follower has acknowledged in this term, and the commit index is not above it.
func (g *Guard) Announce(term, commit uint64) {
	if g.silenced(term) != nil {
		return
	}
	for id, r := range g.acked.unsent(term, commit) {
		g.sending.Go(func() {
			var resp raft.AppendEntriesResponse
			err := g.peers.Passes(id)
			if err == nil {
				err = g.inner.AppendEntries(id, raft.ServerAddress(id), r, &resp)
			}
			// After a failure, the next append or heartbeat causes the follower to get the index.
			if err != nil || !resp.Success {
				g.acked.failed(id)
			}
		})
	}
}

// maxAppendBytes bounds the bytes of entries in one request. Raft bounds only their number.
const maxAppendBytes = 4 << 20

// bounded returns the first entries that fit into maxAppendBytes, but at least one. Raft sends the remaining entries
// with the next request.
func bounded(entries []*raft.Log) []*raft.Log {
	size := 0
	for i, l := range entries {
		if size += raftlog.EntrySize(l); size > maxAppendBytes && i > 0 {
			return entries[:i]
		}
	}
	return entries
}

// AppendEntriesPipeline always returns an error, so that raft uses no pipeline. A follower that rejects an entry can
// block a pipeline forever.
func (g *Guard) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// RequestVote requests the vote of another server.
func (g *Guard) RequestVote(id raft.ServerID, to raft.ServerAddress, args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse) error {
	if err := g.peers.Passes(id); err != nil {
		return err
	}
	err := g.inner.RequestVote(id, to, args, resp)
	if err == nil && resp.Granted {
		g.peers.Note(id, raftlog.Seen{Term: args.Term, Vote: args.Term})
	}
	return err
}

// RequestPreVote sends a pre-vote request to another server. It returns fault.Unavailable if this server leaves the
// election to others, because its disk is nearly full.
func (g *Guard) RequestPreVote(id raft.ServerID, to raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse) error {
	if err := g.peers.Passes(id); err != nil {
		return err
	}
	if g.group.Abstains() {
		return fault.New(fault.Unavailable, "group.RequestPreVote",
			"this server leaves the election to others: its disk is nearly full")
	}
	p, ok := g.inner.(raft.WithPreVote)
	if !ok {
		return fault.New(fault.Unimplemented, "group.RequestPreVote", "the transport has no pre-vote")
	}
	return p.RequestPreVote(id, to, args, resp)
}

// InstallSnapshot sends a snapshot, unless the local disk hangs or this server does not trust its state.
func (g *Guard) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, args *raft.InstallSnapshotRequest,
	resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if err := errors.Join(g.silenced(args.Term), g.peers.Passes(id)); err != nil {
		return err
	}
	if g.state.Wrong() {
		return fault.New(fault.Unavailable, "group.InstallSnapshot",
			"the state of this server is in doubt and is not sent to others")
	}
	g.log.Retained().Begin(id, args.LastLogIndex)
	err := g.inner.InstallSnapshot(id, to, args, resp, data)
	g.log.Retained().End(id, err == nil && resp.Success)
	if err == nil && !resp.Success && resp.Term <= args.Term {
		g.group.FollowerIsAhead()
	}
	return err
}

// TimeoutNow makes another server start an election at once. A leader transfers leadership in this way.
func (g *Guard) TimeoutNow(id raft.ServerID, to raft.ServerAddress, args *raft.TimeoutNowRequest,
	resp *raft.TimeoutNowResponse) error {
	if err := g.peers.Passes(id); err != nil {
		return err
	}
	return g.inner.TimeoutNow(id, to, args, resp)
}

// LocalAddr returns this server's address.
func (g *Guard) LocalAddr() raft.ServerAddress { return g.inner.LocalAddr() }

// EncodePeer encodes an address.
func (g *Guard) EncodePeer(id raft.ServerID, a raft.ServerAddress) []byte {
	return g.inner.EncodePeer(id, a)
}

// DecodePeer decodes an address.
func (g *Guard) DecodePeer(b []byte) raft.ServerAddress { return g.inner.DecodePeer(b) }

// Close stops forwarding, and waits for announcements in flight. Call it after Raft has shut down. Announce must not
// be called afterwards.
func (g *Guard) Close() {
	g.once.Do(func() { close(g.stop) })
	g.wg.Wait()
	g.sending.Wait()
}

// Sender sends the state of this server to a server that has requested it. It bypasses Raft and the Guard.
type Sender struct{ Transport raft.Transport }

// SendState sends a state to another server, and reads the state from data. It returns true if that server has accepted
// the state.
func (s Sender) SendState(to raft.ServerID, r *raft.InstallSnapshotRequest, data io.Reader) (taken bool, err error) {
	var resp raft.InstallSnapshotResponse
	err = s.Transport.InstallSnapshot(to, raft.ServerAddress(to), r, &resp, data)
	return resp.Success, err
}
