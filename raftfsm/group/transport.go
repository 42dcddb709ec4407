package group

import (
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// guard wraps the transport of a group and keeps these hazards of the library out.
//
//  1. Heartbeats never change raft's state off its main loop (hashicorp/raft#695): one
//     that confirms what is known is answered here from atomics, and a copy is offered to
//     the main loop, which alone refreshes the leader's contact; any other goes to the
//     main loop itself.
//  2. A leader whose disk stalls falls silent (hashicorp/raft#503): raft sends heartbeats,
//     and the empty appends that tell of the commit index, from other goroutines while the
//     main loop hangs in a write, so nobody would ever elect another leader.
//  3. Entries are not pipelined (hashicorp/raft#612).
//  4. A snapshot is installed only if it is above the log (see verdict).
//  5. A follower commits no further than the entries its leader vouches for: those of the
//     request and those before them. Raft commits to the end of the follower's log, which
//     may hold entries of a deposed leader, if the leader's commit index is as high. It can
//     be: a leader reads the end of its log first and its commit index later.
//  6. A log that a snapshot contradicted and replaced is taken for gone (see voided).
//  7. A follower's answer waits for the leader's own disk (see unsynced).
//
// It also lets the group campaign at once (a lone voter need not wait for a time-out) and
// notes the commit index that leaders announce.
type guard struct {
	inner    raft.Transport
	stalled  func() time.Duration
	limit    time.Duration // of a stalled write, before this server falls silent
	consumer chan raft.RPC
	beats    chan raft.RPC // one slot: a heartbeat's copy for the main loop
	announce func(term, leaderCommit uint64)
	judge    func(*raft.InstallSnapshotRequest) verdict
	rebase   func(*raft.AppendEntriesRequest) *raft.AppendEntriesRequest
	vouch    func(*raft.AppendEntriesRequest) *raft.AppendEntriesRequest
	bare     bool                     // raft's own fast path, for a test that shows what is wrong with it
	durable  func(index uint64) error // waits until this server's disk holds the entries up to index
	acked    *acked
	retained *retained
	lastLog  func() uint64
	transfer func(raft.RPC, *raft.InstallSnapshotRequest) bool // takes what is not raft's
	wrong    func() bool                                       // the state here is: it must not be sent to anybody
	stale    func()                                            // a follower has a newer snapshot than this leader
	known    func(term uint64, leader raft.ServerID) (lastLog uint64, ok bool)

	started chan struct{} // closed once raft can be called back
	stop    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
}

var (
	_ raft.Transport   = (*guard)(nil)
	_ raft.WithPreVote = (*guard)(nil)
)

func newGuard(inner raft.Transport, stalled func() time.Duration, limit time.Duration) *guard {
	g := &guard{
		inner: inner, stalled: stalled, limit: limit,
		consumer: make(chan raft.RPC), beats: make(chan raft.RPC, 1), started: make(chan struct{}), stop: make(chan struct{}),
		announce: func(uint64, uint64) {}, judge: func(*raft.InstallSnapshotRequest) verdict { return install }, stale: func() {}, known: func(uint64, raft.ServerID) (uint64, bool) { return 0, false },
		transfer: func(raft.RPC, *raft.InstallSnapshotRequest) bool { return false }, wrong: func() bool { return false },
		durable: func(uint64) error { return nil }, acked: newAcked(), retained: &retained{}, lastLog: func() uint64 { return 0 },
		vouch: vouched, rebase: func(r *raft.AppendEntriesRequest) *raft.AppendEntriesRequest { return r },
	}
	return g
}

// verdict is what a follower does with a snapshot that it is sent.
type verdict uint8

const (
	install  verdict = iota // raft takes it
	had                     // the log holds everything in it: acknowledged, and nothing is changed
	outdated                // this server's own snapshot is above it: refused, the leader has to send a newer one
)

// start lets requests through to raft. announce and known may be called from here on.
func (g *guard) start() {
	g.wg.Add(1)
	go g.forward()
	close(g.started)
}

// forward feeds raft's main loop from the inner transport and from the heartbeat slot.
func (g *guard) forward() {
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

// settled looks at a request and reports whether it needs raft no more.
func (g *guard) settled(rpc *raft.RPC) bool {
	switch req := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		if !isHeartbeat(req) {
			g.announce(req.Term, req.LeaderCommitIndex)
			rpc.Command = g.rebase(g.vouch(req))
		}
	case *raft.InstallSnapshotRequest:
		if g.transfer(*rpc, req) {
			return true
		}
		if v := g.judge(req); v != install {
			_, _ = io.Copy(io.Discard, rpc.Reader) // as raft does: the connection goes on after it
			rpc.Respond(&raft.InstallSnapshotResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: req.Term, Success: v == had}, nil)
			return true
		}
	}
	return false
}

// vouched is a request whose commit index is within the entries that its sender has
// compared with the follower's log.
func vouched(r *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	end := r.PrevLogEntry + uint64(len(r.Entries))
	if r.LeaderCommitIndex <= end {
		return r
	}
	c := *r
	c.LeaderCommitIndex = end
	return &c
}

func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return len(r.Entries) == 0 && r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && r.LeaderCommitIndex == 0
}

// campaign makes this server stand for election now. Only for a lone voter.
func (g *guard) campaign() {
	rpc := raft.RPC{Command: &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}}, RespChan: make(chan raft.RPCResponse, 1)}
	select {
	case g.beats <- rpc:
	case <-g.stop:
	}
}

// Consumer gives raft its requests.
func (g *guard) Consumer() <-chan raft.RPC { return g.consumer }

// SetHeartbeatHandler takes over from raft's own fast path, which is never used.
func (g *guard) SetHeartbeatHandler(own func(raft.RPC)) {
	if g.bare {
		g.inner.SetHeartbeatHandler(own)
		return
	}
	g.inner.SetHeartbeatHandler(g.heartbeat)
}

// heartbeat answers on the transport's goroutine. It reads atomics and changes nothing.
func (g *guard) heartbeat(rpc raft.RPC) {
	select {
	case <-g.started:
	default:
		rpc.Respond(nil, fault.New(fault.Unavailable, "group.heartbeat", "the group is being opened"))
		return
	}
	req, ok := rpc.Command.(*raft.AppendEntriesRequest)
	if ok {
		if last, same := g.known(req.Term, raft.ServerID(req.ID)); same {
			rpc.Respond(&raft.AppendEntriesResponse{RPCHeader: req.RPCHeader, Term: req.Term, LastLog: last, Success: true}, nil)
			beat := *req
			select {
			case g.beats <- raft.RPC{Command: &beat, RespChan: make(chan raft.RPCResponse, 1)}:
			default: // one is waiting already
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

// silenced is the error of a server that must not be heard as a leader: its disk hangs.
func (g *guard) silenced() error {
	d := g.stalled()
	if d <= g.limit {
		return nil
	}
	return &fault.Error{Code: fault.Unavailable, Op: "group.heartbeat",
		Msg: "a log write has been hanging for " + d.Round(time.Millisecond).String() + "; this server keeps silent so that another can lead"}
}

// AppendEntries sends entries or a heartbeat, unless the local disk hangs.
func (g *guard) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if err := g.silenced(); err != nil {
		return err
	}
	if fit := bounded(args.Entries); len(fit) < len(args.Entries) { // raft shares the request of a heartbeat with those under way
		args.Entries = fit
	}
	if err := g.inner.AppendEntries(id, to, args, resp); err != nil {
		return err
	}
	if !resp.Success || isHeartbeat(args) {
		return nil
	}
	end := args.PrevLogEntry + uint64(len(args.Entries))
	if len(args.Entries) > 0 {
		if err := g.durable(end); err != nil {
			return err
		}
	}
	g.acked.note(id, args.Term, end)
	g.retained.reached(id, end, g.lastLog())
	return nil
}

// maxAppendBytes bounds the entries of one request; raft only counts them.
const maxAppendBytes = 4 << 20

// bounded keeps the first entries within the bound, at least one. raft takes how far the
// follower got from the very request, so what is left out is sent with the next.
func bounded(entries []*raft.Log) []*raft.Log {
	size := 0
	for i, l := range entries {
		if size += entrySize(l); size > maxAppendBytes && i > 0 {
			return entries[:i]
		}
	}
	return entries
}

// AppendEntriesPipeline is refused: a follower that rejects an entry can deadlock it.
func (g *guard) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// RequestVote asks for a vote.
func (g *guard) RequestVote(id raft.ServerID, to raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return g.inner.RequestVote(id, to, args, resp)
}

// RequestPreVote asks whether a vote would be granted.
func (g *guard) RequestPreVote(id raft.ServerID, to raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	p, ok := g.inner.(raft.WithPreVote)
	if !ok {
		return fault.New(fault.Unimplemented, "group.RequestPreVote", "the transport has no pre-vote")
	}
	return p.RequestPreVote(id, to, args, resp)
}

// InstallSnapshot sends a snapshot, unless the local disk hangs.
func (g *guard) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if err := g.silenced(); err != nil {
		return err
	}
	if g.wrong() {
		return fault.New(fault.Unavailable, "group.InstallSnapshot", "the state of this server is in doubt and is not sent to others")
	}
	g.retained.begin(id, args.LastLogIndex)
	err := g.inner.InstallSnapshot(id, to, args, resp, data)
	g.retained.end(id, err == nil && resp.Success)
	if err == nil && !resp.Success && resp.Term <= args.Term {
		g.stale()
	}
	return err
}

// TimeoutNow hands leadership over.
func (g *guard) TimeoutNow(id raft.ServerID, to raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return g.inner.TimeoutNow(id, to, args, resp)
}

// LocalAddr is this server's address.
func (g *guard) LocalAddr() raft.ServerAddress { return g.inner.LocalAddr() }

// EncodePeer encodes an address.
func (g *guard) EncodePeer(id raft.ServerID, a raft.ServerAddress) []byte {
	return g.inner.EncodePeer(id, a)
}

// DecodePeer decodes an address.
func (g *guard) DecodePeer(b []byte) raft.ServerAddress { return g.inner.DecodePeer(b) }

// close stops forwarding. raft must have been shut down.
func (g *guard) close() {
	g.once.Do(func() { close(g.stop) })
	g.wg.Wait()
}
