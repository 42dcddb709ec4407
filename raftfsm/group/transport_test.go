package group

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
)

// fakeTransport hands requests to the guard and counts what the guard sends.
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
func (f *fakeTransport) AppendEntries(raft.ServerID, raft.ServerAddress, *raft.AppendEntriesRequest, *raft.AppendEntriesResponse) error {
	return f.send()
}
func (f *fakeTransport) RequestVote(raft.ServerID, raft.ServerAddress, *raft.RequestVoteRequest, *raft.RequestVoteResponse) error {
	return f.send()
}
func (f *fakeTransport) InstallSnapshot(raft.ServerID, raft.ServerAddress, *raft.InstallSnapshotRequest, *raft.InstallSnapshotResponse, io.Reader) error {
	return f.send()
}
func (f *fakeTransport) TimeoutNow(raft.ServerID, raft.ServerAddress, *raft.TimeoutNowRequest, *raft.TimeoutNowResponse) error {
	return f.send()
}

// votingTransport also knows the pre-vote.
type votingTransport struct{ *fakeTransport }

func (f votingTransport) RequestPreVote(raft.ServerID, raft.ServerAddress, *raft.RequestPreVoteRequest, *raft.RequestPreVoteResponse) error {
	return f.send()
}

const (
	knownTerm   = 7
	knownLeader = "leader"
	lastHere    = 42
)

// guardOver makes a started guard for a follower of knownLeader in knownTerm.
func guardOver(t *testing.T, inner raft.Transport) *guard {
	t.Helper()
	g := newGuard(inner, func() time.Duration { return 0 }, time.Second)
	g.known = func(term uint64, leader raft.ServerID) (uint64, bool) {
		return lastHere, term == knownTerm && leader == knownLeader
	}
	g.SetHeartbeatHandler(func(raft.RPC) { t.Error("raft's own fast path was used") })
	g.start()
	t.Cleanup(g.close)
	return g
}

func beat(term uint64, leader string) (raft.RPC, chan raft.RPCResponse) {
	answer := make(chan raft.RPCResponse, 1)
	return raft.RPC{RespChan: answer, Command: &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(leader), Addr: []byte(leader)}, Term: term,
	}}, answer
}

func TestAHeartbeatThatConfirmsWhatIsKnownIsAnsweredWhileRaftHangs(t *testing.T) {
	inner := newFakeTransport()
	guardOver(t, inner)
	for range 100 { // nobody reads g.Consumer()
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

func TestRaftSeesACopyOfAnAnsweredHeartbeatButNeverAnswersItTwice(t *testing.T) {
	inner := newFakeTransport()
	g := guardOver(t, inner)
	rpc, answer := beat(knownTerm, knownLeader)
	for range 10 {
		inner.heartbeat(rpc)
		<-answer
	}
	copies := 0
	for drained := false; !drained; {
		select {
		case got := <-g.Consumer():
			copies++
			req, ok := got.Command.(*raft.AppendEntriesRequest)
			switch {
			case !ok || req == rpc.Command.(*raft.AppendEntriesRequest):
				t.Fatal("raft got the very request that was answered")
			case req.Term != knownTerm || string(req.ID) != knownLeader || !isHeartbeat(req):
				t.Fatalf("the copy differs: %+v", req)
			}
			got.Respond(&raft.AppendEntriesResponse{}, nil) // must neither block nor reach the sender
		case <-time.After(100 * time.Millisecond):
			drained = true
		}
	}
	if copies < 1 || copies > 2 { // one in the slot, one in the forwarder's hand
		t.Errorf("raft saw %d copies of 10 heartbeats that it had no time for, want 1 or 2", copies)
	}
	if len(answer) != 0 {
		t.Error("raft's answer reached the sender as well")
	}
}

func TestAnyOtherHeartbeatIsLeftToRaftsMainLoop(t *testing.T) {
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
				t.Error("it was answered or changed on its way")
			}
			got.Respond(&raft.AppendEntriesResponse{Term: 99}, nil)
			if resp := (<-answer).Response.(*raft.AppendEntriesResponse); resp.Term != 99 {
				t.Errorf("the sender got %+v", resp)
			}
			wg.Wait()
		})
	}
}

func TestHeartbeatsBeforeTheStartAndAfterTheEndAreRefused(t *testing.T) {
	inner := newFakeTransport()
	g := newGuard(inner, func() time.Duration { return 0 }, time.Second)
	g.known = func(uint64, raft.ServerID) (uint64, bool) { t.Error("called back before the start"); return 0, false }
	g.SetHeartbeatHandler(nil)
	rpc, answer := beat(knownTerm, knownLeader)
	inner.heartbeat(rpc)
	wantCode(t, (<-answer).Error, fault.Unavailable)

	g.known = func(uint64, raft.ServerID) (uint64, bool) { return 0, false }
	g.start()
	var wg sync.WaitGroup
	wg.Go(func() { inner.heartbeat(rpc) }) // raft takes it no more
	g.close()
	wg.Wait()
	wantCode(t, (<-answer).Error, fault.Unavailable)
}

func TestAServerWhoseDiskHangsFallsSilent(t *testing.T) {
	inner := newFakeTransport()
	var stalled time.Duration
	g := newGuard(votingTransport{inner}, func() time.Duration { return stalled }, time.Second)
	sends := map[string]struct {
		silent bool // when stalled
		call   func() error
	}{
		"heartbeat": {true, func() error {
			return g.AppendEntries("b", "b", &raft.AppendEntriesRequest{Term: 1}, &raft.AppendEntriesResponse{})
		}},
		"commit index without entries": {true, func() error {
			return g.AppendEntries("b", "b", &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 5, PrevLogTerm: 1, LeaderCommitIndex: 5}, &raft.AppendEntriesResponse{})
		}},
		"entries": {true, func() error {
			return g.AppendEntries("b", "b", &raft.AppendEntriesRequest{Term: 1, Entries: []*raft.Log{sealed()}}, &raft.AppendEntriesResponse{})
		}},
		"snapshot": {true, func() error {
			return g.InstallSnapshot("b", "b", &raft.InstallSnapshotRequest{}, &raft.InstallSnapshotResponse{}, bytes.NewReader(nil))
		}},
		"vote":     {false, func() error { return g.RequestVote("b", "b", nil, nil) }},
		"pre-vote": {false, func() error { return g.RequestPreVote("b", "b", nil, nil) }},
		"transfer": {false, func() error { return g.TimeoutNow("b", "b", nil, nil) }},
	}
	for _, stalled = range []time.Duration{0, time.Second, time.Second + 1, time.Hour} {
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

func TestEntriesAreNeverPipelined(t *testing.T) {
	inner := newFakeTransport()
	g := newGuard(inner, nil, 0)
	if _, err := g.AppendEntriesPipeline("b", "b"); err != raft.ErrPipelineReplicationNotSupported { //nolint:errorlint // raft compares it so
		t.Errorf("got %v", err)
	}
	if inner.sent.Load() != 0 {
		t.Error("a pipeline was opened")
	}
}

func TestATransportWithoutPreVoteSaysSo(t *testing.T) {
	g := newGuard(newFakeTransport(), nil, 0)
	wantCode(t, g.RequestPreVote("b", "b", nil, nil), fault.Unimplemented)
}

func TestCampaigningReachesRaftAsARequestToStandNow(t *testing.T) {
	g := guardOver(t, newFakeTransport())
	g.campaign()
	got := <-g.Consumer()
	if _, ok := got.Command.(*raft.TimeoutNowRequest); !ok {
		t.Fatalf("got %T", got.Command)
	}
	got.Respond(&raft.TimeoutNowResponse{}, nil)
}

func TestTheGuardNotesWhatLeadersCommittedAndPassesEverythingOn(t *testing.T) {
	inner := newFakeTransport()
	g := newGuard(inner, nil, 0)
	var heard []string
	g.announce = func(term, commit uint64) { heard = append(heard, fmt.Sprint(term, commit)) }
	g.start()
	defer g.close()
	for _, command := range []any{
		&raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 1, PrevLogTerm: 1, LeaderCommitIndex: 1},
		&raft.AppendEntriesRequest{Term: 3},
		&raft.RequestVoteRequest{Term: 4},
		&raft.AppendEntriesRequest{Term: 5, Entries: []*raft.Log{sealed()}},
	} {
		inner.consumer <- raft.RPC{Command: command}
		if got := <-g.Consumer(); got.Command != command {
			t.Errorf("%T came out as %T", command, got.Command)
		}
	}
	if got := fmt.Sprint(heard); got != "[3 1 5 0]" {
		t.Errorf("heard %s", got)
	}
	if g.LocalAddr() != "me" || string(g.EncodePeer("x", "y")) != "enc y" || g.DecodePeer([]byte("z")) != "dec z" {
		t.Error("addresses are not the transport's")
	}
}

// earlyTransport delivers heartbeats from the moment a handler is set, as a network does
// when a node comes back into a running cluster.
type earlyTransport struct {
	*raft.InmemTransport
	stop chan struct{}
	wg   sync.WaitGroup
}

func (e *earlyTransport) SetHeartbeatHandler(h func(raft.RPC)) {
	e.wg.Go(func() {
		for {
			rpc, answer := beat(3, "leader")
			h(rpc)
			select {
			case <-answer:
			case <-e.stop:
				return
			}
		}
	})
}

func TestHeartbeatsWhileAGroupIsOpenedDoNoHarm(t *testing.T) {
	_, inmem := raft.NewInmemTransport("a")
	e := &earlyTransport{InmemTransport: inmem, stop: make(chan struct{})}
	o := alone(t, t.TempDir())
	o.Transport, o.Bootstrap = e, false
	g := openGroup(t, o)
	until(t, "the heartbeats were not heard", func() bool { return g.Leader() == "leader" && g.Term() == 3 })
	close(e.stop)
	closeGroup(t, g)
	e.wg.Wait()
}
