package transport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// fakeTransport passes requests to the guard and counts what the guard sends.
type fakeTransport struct {
	consumer  chan raft.RPC
	heartbeat func(raft.RPC)
	sent      atomic.Int32
}

var errSent = errors.New("sent")

func newFakeTransport() *fakeTransport { return &fakeTransport{consumer: make(chan raft.RPC, 4)} }

func (f *fakeTransport) send() error { f.sent.Add(1); return errSent }

func (f *fakeTransport) Consumer() <-chan raft.RPC            { return f.consumer }
func (f *fakeTransport) LocalAddr() raft.ServerAddress        { return "me" }
func (f *fakeTransport) SetHeartbeatHandler(h func(raft.RPC)) { f.heartbeat = h }
func (f *fakeTransport) EncodePeer(_ raft.ServerID, a raft.ServerAddress) []byte {
	return []byte("enc " + a)
}
func (f *fakeTransport) DecodePeer(b []byte) raft.ServerAddress {
	return raft.ServerAddress("dec " + string(b))
}
func (f *fakeTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, f.send()
}
func (f *fakeTransport) AppendEntries(raft.ServerID, raft.ServerAddress, *raft.AppendEntriesRequest,
	*raft.AppendEntriesResponse) error {
	return f.send()
}
func (f *fakeTransport) RequestVote(raft.ServerID, raft.ServerAddress, *raft.RequestVoteRequest,
	*raft.RequestVoteResponse) error {
	return f.send()
}
func (f *fakeTransport) InstallSnapshot(raft.ServerID, raft.ServerAddress, *raft.InstallSnapshotRequest,
	*raft.InstallSnapshotResponse, io.Reader) error {
	return f.send()
}
func (f *fakeTransport) TimeoutNow(raft.ServerID, raft.ServerAddress, *raft.TimeoutNowRequest,
	*raft.TimeoutNowResponse) error {
	return f.send()
}

// votingTransport is a fakeTransport with pre-votes.
type votingTransport struct{ *fakeTransport }

func (f votingTransport) RequestPreVote(raft.ServerID, raft.ServerAddress, *raft.RequestPreVoteRequest,
	*raft.RequestPreVoteResponse) error {
	return f.send()
}

const (
	knownTerm   = 7
	knownLeader = "leader"
	lastHere    = 42
)

// fakeGroup implements the interfaces of the group and of its log for a guard.
type fakeGroup struct {
	term     uint64
	known    func(term uint64, leader raft.ServerID) bool // nil = never
	stalled  time.Duration
	abstains bool
	voter    raft.ServerID // a voter of the configuration
	heard    []string
	retained raftlog.Retained
}

func (f *fakeGroup) Term() uint64 { return f.term }

func (f *fakeGroup) Known(term uint64, leader raft.ServerID) (uint64, bool) {
	return lastHere, f.known != nil && f.known(term, leader)
}

func (f *fakeGroup) Announced(term, commit uint64) {
	f.heard = append(f.heard, fmt.Sprint(term, commit))
}

func (f *fakeGroup) Judge(*raft.InstallSnapshotRequest) Verdict        { return Install }
func (f *fakeGroup) FollowerIsAhead()                                  {}
func (f *fakeGroup) KnownVoter() raft.ServerID                         { return f.voter }
func (f *fakeGroup) Abstains() bool                                    { return f.abstains }
func (f *fakeGroup) Take(raft.RPC, *raft.InstallSnapshotRequest) bool  { return false }
func (f *fakeGroup) Wrong() bool                                       { return false }
func (f *fakeGroup) Passes(raft.ServerID) error                        { return nil }
func (f *fakeGroup) PassesFrom(raft.ServerID) error                    { return nil }
func (f *fakeGroup) Note(raft.ServerID, raftlog.Seen) (b raftlog.Seen) { return b }
func (f *fakeGroup) Stalled() time.Duration                            { return f.stalled }
func (f *fakeGroup) WaitDurable(uint64) error                          { return nil }
func (f *fakeGroup) Last() uint64                                      { return 0 }
func (f *fakeGroup) Retained() *raftlog.Retained                       { return &f.retained }

func (f *fakeGroup) Rebase(r *raft.AppendEntriesRequest) *raft.AppendEntriesRequest { return r }

// guarded returns a guard around inner that stops sending when a write stalls for more than a second.
func guarded(inner raft.Transport, f *fakeGroup) *Guard {
	return New(inner, time.Second, f, f, f, f)
}

// guardOver returns a started guard of a follower of knownLeader in knownTerm.
func guardOver(t *testing.T, inner raft.Transport) *Guard {
	t.Helper()
	g := guarded(inner, &fakeGroup{known: func(term uint64,
		leader raft.ServerID) bool {
		return term == knownTerm && leader == knownLeader
	}})
	g.SetHeartbeatHandler(func(raft.RPC) { t.Error("raft's own fast path was used") })
	g.Start()
	t.Cleanup(g.Close)
	return g
}

func beat(term uint64, leader string) (raft.RPC, chan raft.RPCResponse) {
	answer := make(chan raft.RPCResponse, 1)
	return raft.RPC{RespChan: answer, Command: &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(leader),
			Addr: []byte(leader)}, Term: term,
	}}, answer
}

func TestGuard_AnswersKnownHeartbeatWhileRaftHangs(t *testing.T) {
	inner := newFakeTransport()
	guardOver(t, inner)
	for range 100 { // no goroutine reads g.Consumer()
		rpc, answer := beat(knownTerm, knownLeader)
		inner.heartbeat(rpc)
		select {
		case got := <-answer:
			resp := got.Response.(*raft.AppendEntriesResponse)
			if got.Error != nil || !resp.Success || resp.Term != knownTerm || resp.LastLog != lastHere {
				t.Fatalf("answered %+v, %v", resp, got.Error)
			}
		default:
			t.Fatal("the heartbeat was not answered before its handler returned")
		}
	}
}

func TestGuard_PassesCopyOfHeartbeatToRaft(t *testing.T) {
	inner := newFakeTransport()
	g := guardOver(t, inner)
	rpc, answer := beat(knownTerm, knownLeader)
	for range 10 {
		inner.heartbeat(rpc)
		<-answer
	}
	copies := 0
	var quiet <-chan time.Time // nil until the first copy has come
	for drained := false; !drained; {
		select {
		case got := <-g.Consumer():
			copies++
			req, ok := got.Command.(*raft.AppendEntriesRequest)
			switch {
			case !ok || req == rpc.Command.(*raft.AppendEntriesRequest):
				t.Fatal("raft received the request itself, which was answered already")
			case req.Term != knownTerm || string(req.ID) != knownLeader || !IsHeartbeat(req):
				t.Fatalf("the copy differs: %+v", req)
			}
			got.Respond(&raft.AppendEntriesResponse{}, nil) // must neither block nor reach the sender
			quiet = time.After(100 * time.Millisecond)
		case <-quiet:
			drained = true
		}
	}
	if copies > 2 { // one in the channel, one held by forward
		t.Errorf("raft received %d copies of 10 heartbeats while it was busy, want 1 or 2", copies)
	}
	if len(answer) != 0 {
		t.Error("raft's answer reached the sender as well")
	}
}

func TestGuard_LeavesUnknownHeartbeatToRaft(t *testing.T) {
	for name, c := range map[string]struct {
		term   uint64
		leader string
	}{
		"higher term":    {knownTerm + 1, knownLeader},
		"lower term":     {knownTerm - 1, knownLeader},
		"another leader": {knownTerm, "usurper"},
	} {
		t.Run(name, func(t *testing.T) {
			inner := newFakeTransport()
			g := guardOver(t, inner)
			rpc, answer := beat(c.term, c.leader)
			var wg sync.WaitGroup
			wg.Go(func() { inner.heartbeat(rpc) })
			got := <-g.Consumer()
			if got.Command != rpc.Command || len(answer) != 0 {
				t.Error("the heartbeat was answered or changed")
			}
			got.Respond(&raft.AppendEntriesResponse{Term: 99}, nil)
			if resp := (<-answer).Response.(*raft.AppendEntriesResponse); resp.Term != 99 {
				t.Errorf("the sender got %+v", resp)
			}
			wg.Wait()
		})
	}
}

func TestGuard_RefusesHeartbeatsBeforeStartAndAfterClose(t *testing.T) {
	inner := newFakeTransport()
	group := &fakeGroup{known: func(uint64, raft.ServerID) bool { t.Error("called before Start"); return false }}
	g := guarded(inner, group)
	g.SetHeartbeatHandler(nil)
	rpc, answer := beat(knownTerm, knownLeader)
	inner.heartbeat(rpc)
	wantCode(t, (<-answer).Error, fault.Unavailable)

	group.known = nil
	g.Start()
	var wg sync.WaitGroup
	wg.Go(func() { inner.heartbeat(rpc) }) // raft no longer accepts it
	g.Close()
	wg.Wait()
	wantCode(t, (<-answer).Error, fault.Unavailable)
}

func TestGuard_StopsSendingWhileDiskHangs(t *testing.T) {
	inner := newFakeTransport()
	group := &fakeGroup{}
	g := guarded(votingTransport{inner}, group)
	g.Start()
	defer g.Close()
	sends := map[string]struct {
		silent bool // while the disk hangs
		call   func() error
	}{
		"heartbeat": {true, func() error {
			return g.AppendEntries("b", "b", &raft.AppendEntriesRequest{Term: 1}, &raft.AppendEntriesResponse{})
		}},
		"commit index without entries": {true, func() error {
			return g.AppendEntries("b", "b", &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 5, PrevLogTerm: 1,
				LeaderCommitIndex: 5}, &raft.AppendEntriesResponse{})
		}},
		"entries": {true, func() error {
			return g.AppendEntries("b", "b", &raft.AppendEntriesRequest{Term: 1,
				Entries: []*raft.Log{{Index: 7, Term: 3, Data: []byte("data")}}}, &raft.AppendEntriesResponse{})
		}},
		"snapshot": {true, func() error {
			return g.InstallSnapshot("b", "b", &raft.InstallSnapshotRequest{}, &raft.InstallSnapshotResponse{},
				bytes.NewReader(nil))
		}},
		"vote":     {false, func() error { return g.RequestVote("b", "b", nil, nil) }},
		"pre-vote": {false, func() error { return g.RequestPreVote("b", "b", nil, nil) }},
		"transfer": {false, func() error { return g.TimeoutNow("b", "b", nil, nil) }},
	}
	for _, stalled := range []time.Duration{0, time.Second, time.Second + 1, time.Hour} {
		group.stalled = stalled
		for name, s := range sends {
			inner.sent.Store(0)
			err := s.call()
			if want := s.silent && stalled > time.Second; want != (inner.sent.Load() == 0) {
				t.Errorf("%s with a disk that hangs for %s: sent %d times, %v", name, stalled, inner.sent.Load(), err)
			} else if want {
				wantCode(t, err, fault.Unavailable)
			} else if !errors.Is(err, errSent) {
				t.Errorf("%s: the transport's answer became %v", name, err)
			}
		}
	}
}

// Without this rule, raft could send entries of the next leader in the last request of a deposed leader.
func TestGuard_DeposedLeaderSendsNothing(t *testing.T) {
	inner := newFakeTransport()
	group := &fakeGroup{term: 3}
	g := guarded(inner, group)
	g.Start()
	defer g.Close()
	send := func() {
		t.Helper()
		for _, err := range []error{
			g.AppendEntries("b", "b", &raft.AppendEntriesRequest{Term: 3}, &raft.AppendEntriesResponse{}),
			g.AppendEntries("b", "b", &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 8, PrevLogTerm: 4,
				LeaderCommitIndex: 8}, &raft.AppendEntriesResponse{}),
			g.InstallSnapshot("b", "b", &raft.InstallSnapshotRequest{Term: 3, LastLogIndex: 8, LastLogTerm: 4},
				&raft.InstallSnapshotResponse{}, bytes.NewReader(nil)),
		} {
			if group.term > 3 {
				wantCode(t, err, fault.NotLeader)
			} else if !errors.Is(err, errSent) {
				t.Errorf("the transport's answer became %v", err)
			}
		}
	}
	send()
	group.term = 4
	inner.sent.Store(0)
	send()
	if n := inner.sent.Load(); n != 0 {
		t.Errorf("sent %d requests of a term that has ended", n)
	}
}

func TestGuard_NeverPipelines(t *testing.T) {
	inner := newFakeTransport()
	g := guarded(inner, &fakeGroup{})
	//nolint:errorlint // raft compares with != as well
	if _, err := g.AppendEntriesPipeline("b", "b"); err != raft.ErrPipelineReplicationNotSupported {
		t.Errorf("got %v", err)
	}
	if inner.sent.Load() != 0 {
		t.Error("a pipeline was opened")
	}
}

func TestGuard_WithoutPreVoteReturnsError(t *testing.T) {
	g := guarded(newFakeTransport(), &fakeGroup{})
	wantCode(t, g.RequestPreVote("b", "b", nil, nil), fault.Unimplemented)
}

func TestGuard_CampaignSendsTimeoutNow(t *testing.T) {
	g := guardOver(t, newFakeTransport())
	g.Campaign()
	got := <-g.Consumer()
	if _, ok := got.Command.(*raft.TimeoutNowRequest); !ok {
		t.Fatalf("got %T", got.Command)
	}
	got.Respond(&raft.TimeoutNowResponse{}, nil)
}

func TestGuard_RecordsCommitIndexAndForwardsRequests(t *testing.T) {
	inner := newFakeTransport()
	group := &fakeGroup{}
	g := guarded(inner, group)
	g.Start()
	defer g.Close()
	for _, command := range []any{
		&raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 1, PrevLogTerm: 1, LeaderCommitIndex: 1},
		&raft.AppendEntriesRequest{Term: 3},
		&raft.TimeoutNowRequest{},
		&raft.AppendEntriesRequest{Term: 5, Entries: []*raft.Log{{Index: 7, Term: 3, Data: []byte("data")}}},
	} {
		inner.consumer <- raft.RPC{Command: command}
		if got := <-g.Consumer(); got.Command != command {
			t.Errorf("%T came out as %T", command, got.Command)
		}
	}
	if got := fmt.Sprint(group.heard); got != "[3 1 5 0]" {
		t.Errorf("announced %s", got)
	}
	if g.LocalAddr() != "me" || string(g.EncodePeer("x", "y")) != "enc y" || g.DecodePeer([]byte("z")) != "dec z" {
		t.Error("addresses are not the transport's")
	}
}

// The guard passes the id of a known voter to raft. Raft gives its vote to the address, which is still that of the
// candidate.
func TestGuard_UnknownCandidateIsPassedAsKnownVoter(t *testing.T) {
	inner := newFakeTransport()
	g := guarded(inner, &fakeGroup{voter: "known"})
	g.Start()
	defer g.Close()
	header := raft.RPCHeader{ID: []byte("new"), Addr: []byte("new's")}
	for _, command := range []raft.WithRPCHeader{
		&raft.RequestVoteRequest{RPCHeader: header, Term: 4},
		&raft.RequestPreVoteRequest{RPCHeader: header, Term: 4},
	} {
		inner.consumer <- raft.RPC{Command: command}
		got := (<-g.Consumer()).Command.(raft.WithRPCHeader).GetRPCHeader()
		if string(got.ID) != "known" || string(got.Addr) != "new's" || string(command.GetRPCHeader().ID) != "new" {
			t.Errorf("%T: raft gets %q at %q, the request names %q", command, got.ID, got.Addr,
				command.GetRPCHeader().ID)
		}
	}
}

func TestGuard_AbstainingServerAsksForNoPreVotes(t *testing.T) {
	group := &fakeGroup{abstains: true}
	inner := newFakeTransport()
	g := guarded(votingTransport{inner}, group)
	wantCode(t, g.RequestPreVote("b", "b", nil, nil), fault.Unavailable)
	if n := inner.sent.Load(); n != 0 {
		t.Errorf("an abstaining server has sent %d requests", n)
	}
	group.abstains = false
	_ = g.RequestPreVote("b", "b", nil, nil) // the fake transport only counts
	if n := inner.sent.Load(); n != 1 {
		t.Errorf("a server that does not abstain has sent %d requests", n)
	}
}
