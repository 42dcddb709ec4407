package workflows

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/records"
)

// silent is a cluster whose leader gives the node one activity and then fails. The next leader knows no session and
// executes no join.
type silent struct {
	records.Access
	gave    bool
	handed  time.Time // begin of the call that has returned the activity with a proof
	changed time.Time // time at which the next leader answers
}

func (*silent) Groups(context.Context) (uint32, error) { return 1, nil }

func (s *silent) Ask(ctx context.Context, _ uint32, _ string, body []byte) ([]byte, bool, error) {
	c, err := readCall(&lenprefix.Reader{Rest: body})
	if err != nil {
		return nil, false, err
	}
	switch {
	case c.what == callStream: // comes at the same time as the first pull, or later
		return nil, false, nil
	case !s.gave && c.what == callPull:
		s.gave, s.handed = true, time.Now()
		return appendAnswer([]byte{1}, &answer{number: 1, proven: true, items: []*item{{kind: itemTask, stream: 1,
			ref: Ref{"shop", "one"}, number: 1, birth: 7, fresh: [][]byte{{}}}}}), false, nil
	case !s.gave:
		return nil, false, nil
	case c.what == callPull && s.changed.IsZero():
		s.changed = time.Now().Add(proofLife - 500*time.Millisecond)
		<-time.After(time.Until(s.changed))
		return []byte{0, 0, 0, 0}, false, nil
	}
	<-ctx.Done()
	return nil, false, fault.Wrap(ctx.Err(), "test", "asking")
}

// A node that cannot join a new leader in time ends the streams that have activities, before the leader hands these
// activities out again.
func TestLink_ActivitiesEndWithTheirProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &silent{}
		b := NewBroker(s, BrokerOptions{})
		stream, err := b.Work(t.Context(), "shop", workflow.Worker{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Next(t.Context()); !fault.Is(err, fault.Unavailable) {
			t.Errorf("the stream ends with: %v", err)
		}
		if kept := time.Since(s.handed); kept > sessionLife-time.Second {
			t.Errorf("the node has kept the activity for %s after its proof, want at most %s", kept, proofLife)
		}
		b.endSend()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// brief is a leader that hands out one turn without its history, as if the node had the history in its cache. brief
// returns the history in parts of one event, until a read fails.
type brief struct {
	records.Access
	history [][]byte
	fails   int // number of the read that fails; 0 = no read fails
	gave    bool
	reads   int
}

func (*brief) Groups(context.Context) (uint32, error) { return 1, nil }

func (*brief) Locate(context.Context, string, string) (uint32, error) { return 0, nil }

func (l *brief) Ask(ctx context.Context, _ uint32, _ string, body []byte) ([]byte, bool, error) {
	c, err := readCall(&lenprefix.Reader{Rest: body})
	switch {
	case err != nil:
		return nil, false, err
	case c.what == callEvents:
		if l.reads++; l.reads == l.fails {
			return nil, false, fault.New(fault.Unavailable, "test", "the leader does not answer")
		}
		return append([]byte{1, 1}, encodeEvents(l.history[c.a:c.a+1])...), false, nil
	case c.what != callPull:
		return nil, false, nil
	case l.gave:
		<-ctx.Done()
		return nil, false, fault.Wrap(ctx.Err(), "test", "pulling")
	}
	l.gave = true
	return appendAnswer([]byte{1}, &answer{number: 1, proven: true, items: []*item{{kind: itemTurn, stream: 1,
		ref: Ref{"shop", "one"}, number: 1, from: uint64(len(l.history) - 1), past: l.history}}}), false, nil
}

// A node whose cache has dropped a history reads the history in parts. A worker gets the whole history in its order,
// or no turn.
func TestBroker_HistoryInParts(t *testing.T) {
	var history [][]byte
	for id := range int32(4) {
		history = append(history, encodeEvent(&protos.HistoryEvent{EventId: id}))
	}
	for fails := range 4 {
		synctest.Test(t, func(t *testing.T) {
			b := NewBroker(&brief{history: history, fails: fails}, BrokerOptions{})
			stream, err := b.Work(t.Context(), "shop", workflow.Worker{})
			testutil.Must(t, err)
			work, err := stream.Next(t.Context())
			switch {
			case fails > 0:
				if !fault.Is(err, fault.Unavailable) {
					t.Errorf("read %d fails, and the worker gets %v, %v", fails, work, err)
				}
			case err != nil:
				t.Error(err)
			default:
				raw, err := proto.Marshal(work)
				testutil.Must(t, err)
				decoded := &protos.WorkItem{}
				testutil.Must(t, proto.Unmarshal(raw, decoded))
				var ids []int32
				for _, e := range decoded.GetWorkflowRequest().GetPastEvents() {
					ids = append(ids, e.GetEventId())
				}
				if !slices.Equal(ids, []int32{0, 1, 2, 3}) {
					t.Errorf("the worker gets the events %v", ids)
				}
			}
			b.endSend()
			testutil.Must(t, b.Close())
		})
	}
}

// The leader fails while the node reads a part of a history. The node ends its streams with activities in time,
// although it still waits for that part.
func TestLink_ReadsHistoriesOnlyWhileItHasAProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pulls, handed := 0, time.Time{}
		var b *Broker
		b = NewBroker(&scripted{answer: func(ctx context.Context, c *call) ([]byte, bool, error) {
			i := &item{ref: Ref{"shop", "one"}, number: 1, birth: 7, fresh: [][]byte{{}}}
			switch {
			case c.what != callPull && c.what != callEvents:
				return nil, false, nil
			case c.what == callPull && pulls == 0:
				for b.Workers("shop") < 2 {
					sleep(ctx, time.Millisecond)
				}
				i.kind, i.stream, handed = itemTask, 1, time.Now()
			case c.what == callPull && pulls == 1:
				i.kind, i.stream, i.from, i.past = itemTurn, 2, 1, [][]byte{{}}
			default:
				<-ctx.Done()
				return nil, false, fault.Wrap(ctx.Err(), "test", "asking")
			}
			pulls++
			return appendAnswer([]byte{1}, &answer{number: uint64(pulls), //nolint:gosec // positive
				proven: pulls == 1, items: []*item{i}}), false, nil
		}}, BrokerOptions{})
		stream, err := b.Work(t.Context(), "shop", workflow.Worker{})
		testutil.Must(t, err)
		_, err = b.Work(t.Context(), "shop", workflow.Worker{})
		testutil.Must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = stream.Next(ctx)
		testutil.Must(t, err)
		if _, err := stream.Next(ctx); !fault.Is(err, fault.Unavailable) {
			t.Errorf("the stream ends with: %v", err)
		}
		if kept := time.Since(handed); kept > sessionLife-time.Second {
			t.Errorf("the node has kept the activity for %s after its proof, want at most %s", kept, proofLife)
		}
		b.endSend()
		testutil.Must(t, b.Close())
	})
}

// nothing waits for pullPatience, and returns an answer to a pull without work.
func nothing(ctx context.Context) ([]byte, bool, error) {
	sleep(ctx, pullPatience)
	return appendAnswer([]byte{1}, &answer{proven: true}), false, nil
}

// A delayed call adds a stream to the session, after the call that has ended this stream. The node ends the stream
// again when it gets work for the stream.
func TestLink_EndsStreamsThatItDoesNotHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pulls, left := 0, 0
		b := NewBroker(&scripted{answer: func(ctx context.Context, c *call) ([]byte, bool, error) {
			switch {
			case c.what == callPull && pulls < 3:
				pulls++
				i := &item{kind: itemTurn, stream: 99, ref: Ref{"shop", "one"}, number: 1}
				return appendAnswer([]byte{1}, &answer{number: 1, proven: true, items: []*item{i, i}}), false, nil
			case c.what == callPull:
				return nothing(ctx)
			case c.what == callLeave && c.a == 99:
				left++
				sleep(ctx, time.Second)
			}
			return nil, false, nil
		}}, BrokerOptions{})
		if _, err := b.Work(t.Context(), "shop", workflow.Worker{}); err != nil {
			t.Fatal(err)
		}
		<-time.After(3 * time.Second)
		if left != 1 {
			t.Errorf("the node has ended the stream %d times, want once", left)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A stream begins while the node joins, and the call that adds it fails. The node joins again, so that the leader
// knows the stream.
func TestLink_JoinsAgainIfStreamsAreUnsure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards the variables below
		known, works, adds, joined := map[uint64]string{}, 0, 0, uint64(0)
		b := NewBroker(&scripted{answer: func(ctx context.Context, c *call) ([]byte, bool, error) {
			switch c.what {
			case callJoin:
				j, err := readJoin(c)
				if err != nil {
					return nil, false, err
				}
				mu.Lock()
				if j.Number <= joined {
					t.Errorf("call %d to join comes after call %d", j.Number, joined)
				}
				mu.Unlock()
				sleep(ctx, time.Second)
				mu.Lock()
				joined, known = j.Number, j.Streams
				mu.Unlock()
			case callStream:
				mu.Lock()
				if works == 1 { // run has begun to join before the first stream is added
					mu.Unlock()
					return nil, false, nil
				}
				adds++
				first := adds == 1
				mu.Unlock()
				if first {
					return []byte{0}, false, nil // the session has not begun yet
				}
				return nil, false, fault.New(fault.Unavailable, "test", "no leader")
			case callPull:
				return nothing(ctx)
			}
			return nil, false, nil
		}}, BrokerOptions{})
		for n := range 2 {
			mu.Lock()
			works = n + 1
			mu.Unlock()
			if _, err := b.Work(t.Context(), "shop", workflow.Worker{}); err != nil {
				t.Fatal(err)
			}
			<-time.After(500 * time.Millisecond)
		}
		<-time.After(10 * time.Second)
		mu.Lock()
		if joined != 2 || len(known) != 2 || adds != 2 {
			t.Errorf("after %d joins, the leader knows the streams %v", joined, known)
		}
		mu.Unlock()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A repeated join, and a delayed join that is executed after a later join of the same session, change nothing.
func TestJoin_LateCallChangesNothing(t *testing.T) {
	broken, trace := play(t, 1, func(m *model) {
		k := m.server(m.Leader).keeper
		join := func(number, stream uint64) (err error) {
			done := make(chan error, 1)
			go func() {
				done <- k.Join(grouptest.WithClient(m.T.Context(), number), &Join{Session: "s", Number: number,
					Streams: map[uint64]string{stream: modelApp}})
			}()
			m.Settle()
			m.answerAll()
			return <-done
		}
		if err := join(2, 12); err != nil {
			t.Error(err)
		}
		if err := join(2, 13); err != nil {
			t.Error(err)
		}
		if err := join(1, 11); !fault.Is(err, fault.Unavailable) {
			t.Errorf("the late call is answered with %v", err)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if s := k.sessions["s"]; s == nil || len(s.streams) != 1 || s.streams[12] == nil {
			t.Errorf("the session has other streams than those of the last call: %v", s)
		}
	})
	check(t, "a late call to join", broken, trace)
}

// When pulls keep failing for the same reason, the link logs the reason once. After a successful pull, it logs the
// reason again.
func TestLink_LogsAReasonOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		pulls := 0
		b := NewBroker(&scripted{answer: func(ctx context.Context, c *call) ([]byte, bool, error) {
			if c.what != callPull {
				return nil, false, nil
			}
			if pulls++; pulls == 20 {
				return appendAnswer([]byte{1}, &answer{proven: true}), false, nil
			}
			return nil, false, fault.New(fault.ReadOnly, "test", "the group is read-only")
		}}, BrokerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		_, err := b.Work(t.Context(), "shop", workflow.Worker{})
		testutil.Must(t, err)
		<-time.After(time.Minute)
		b.endSend()
		testutil.Must(t, b.Close())
		if n := strings.Count(log.String(), "cannot be received"); n != 2 || pulls < 40 {
			t.Errorf("%d lines about %d pulls: %s", n, pulls, log.String())
		}
	})
}
