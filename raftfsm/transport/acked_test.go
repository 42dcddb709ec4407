package transport

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// followers is a transport that passes every append to the channel got. It then returns the error fail. The response
// is a success unless refuses is set.
type followers struct {
	*fakeTransport
	got     chan *raft.AppendEntriesRequest
	fail    error
	refuses bool
}

func (f *followers) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, r *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	f.got <- r
	resp.Success = !f.refuses
	return f.fail
}

// append sends a request with n entries of term 3 after entry 10, as raft does in term 4.
func (f *followers) append(t *testing.T, g *Guard, n int, commit uint64) {
	t.Helper()
	r := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: []byte("me")}, Term: 4, PrevLogEntry: 10,
		PrevLogTerm: 2, LeaderCommitIndex: commit}
	for i := range n {
		r.Entries = append(r.Entries, &raft.Log{Index: 11 + uint64(i), Term: 3})
	}
	if err := g.AppendEntries("b", "b", r, &raft.AppendEntriesResponse{}); err != nil {
		t.Fatal(err)
	}
	<-f.got
}

func TestAnnounce_SendsWhatNoAppendCarried(t *testing.T) {
	f := &followers{fakeTransport: newFakeTransport(), got: make(chan *raft.AppendEntriesRequest, 10)}
	g := guardOver(t, f)
	nothing := func(why string, term, commit uint64) {
		t.Helper()
		g.Announce(term, commit)
		g.sending.Wait()
		select {
		case r := <-f.got:
			t.Errorf("%s: sent %+v", why, r)
		default:
		}
	}
	nothing("no follower has acknowledged anything", 4, 10)
	f.append(t, g, 2, 10)
	nothing("the append carried the index", 4, 10)
	nothing("the follower lacks the entry", 4, 13)
	nothing("the acknowledgement is of another term", 5, 12)

	g.Announce(4, 12)
	g.sending.Wait()
	r := <-f.got
	if r.Term != 4 || r.PrevLogEntry != 12 || r.PrevLogTerm != 3 || r.LeaderCommitIndex != 12 || len(r.Entries) != 0 ||
		string(r.ID) != "me" {
		t.Errorf("announced %+v", r)
	}
	nothing("it was announced", 4, 12)
}

func TestAnnounce_IsRepeatedAfterAFailure(t *testing.T) {
	f := &followers{fakeTransport: newFakeTransport(), got: make(chan *raft.AppendEntriesRequest, 10)}
	g := guardOver(t, f)
	f.append(t, g, 1, 10)
	for n, answer := range []struct {
		fail    error
		refuses bool
	}{{fail: errors.New("no connection")}, {refuses: true}, {}} {
		f.fail, f.refuses = answer.fail, answer.refuses
		g.Announce(4, 11)
		g.sending.Wait()
		select {
		case <-f.got:
		default:
			t.Errorf("announcement %d was not sent", n+1)
		}
	}
}

// A follower that was restarted may have forgotten the commit index. So the index is announced again after the first
// heartbeat that the follower answers.
func TestAnnounce_IsDueAfterAFollowerReturns(t *testing.T) {
	f := &followers{fakeTransport: newFakeTransport(), got: make(chan *raft.AppendEntriesRequest, 10)}
	g := guardOver(t, f)
	beat := func(fail error) (announces bool) {
		t.Helper()
		f.fail = fail
		moved := g.Moved()
		err := g.AppendEntries("b", "b", &raft.AppendEntriesRequest{Term: 4}, &raft.AppendEntriesResponse{})
		if !errors.Is(err, fail) {
			t.Fatal(err)
		}
		<-f.got
		select {
		case <-moved:
			return true
		default:
			return false
		}
	}
	if beat(nil) {
		t.Error("the follower has acknowledged nothing")
	}
	f.append(t, g, 1, 11)
	if beat(nil) {
		t.Error("the follower was sent the index")
	}
	if gone := errors.New("no connection"); beat(gone) || !beat(nil) {
		t.Error("the follower does not learn the index after a failure")
	}
	g.Announce(4, 11)
	g.sending.Wait()
	if r := <-f.got; r.LeaderCommitIndex != 11 {
		t.Errorf("announced %+v", r)
	}
	if beat(nil) {
		t.Error("the index is announced twice")
	}
}

// Raft would repeat a request that was not delivered only after its commit timeout.
func TestAppendEntries_IsRepeatedUntilDelivered(t *testing.T) {
	for _, failures := range []int{0, 3, 100} {
		synctest.Test(t, func(t *testing.T) {
			f := &undelivered{fakeTransport: newFakeTransport(), failures: failures}
			begun := time.Now()
			err := guardOver(t, f).AppendEntries("b", "b", &raft.AppendEntriesRequest{Term: 4, PrevLogEntry: 10},
				&raft.AppendEntriesResponse{})
			if took := time.Since(begun); failures == 3 && (err != nil || took != 70*time.Millisecond) ||
				failures > 3 && (err == nil || took != 310*time.Millisecond) || failures == 0 && err != nil {
				t.Errorf("%d failures: %v after %s", failures, err, took)
			}
		})
	}
}

// undelivered is a transport that fails the given number of times, and then delivers every append.
type undelivered struct {
	*fakeTransport
	failures int
}

func (f *undelivered) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, _ *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	if f.failures--; f.failures >= 0 {
		resp.Term = 9
		return errors.New("no connection")
	}
	if resp.Term != 0 {
		return errors.New("the response is not empty")
	}
	resp.Success = true
	return nil
}
