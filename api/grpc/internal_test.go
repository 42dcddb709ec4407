package grpc

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/admission"
	"github.com/quorate/quorate/internal/connlimit"
)

// While answers to refused calls are still unsent, the server stops reading from the connection.
func TestConn_NotReadWhileRefusalsAreUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		c := &conn{Conn: ours, crowd: connlimit.New(connlimit.Options{}), open: &openConns{}}
		c.answered.L = &c.gate
		c.crowd.Join(c)
		var got []byte
		var all sync.WaitGroup
		defer all.Wait()
		all.Go(func() {
			b := make([]byte, 1)
			for {
				n, err := c.Read(b)
				got = append(got, b[:n]...)
				if err != nil {
					return
				}
				if b[0] == 'r' {
					c.pause()
				}
			}
		})
		all.Go(func() { _, _ = theirs.Write([]byte("arb")) })
		want := func(text string) {
			t.Helper()
			if synctest.Wait(); string(got) != text {
				t.Fatalf("%q was read, want %q", got, text)
			}
		}
		want("ar")
		all.Go(func() { _, _ = c.Write([]byte("the answer")) }) // the client does not read the answer yet
		synctest.Wait()
		c.resume()
		want("ar")
		_, _ = theirs.Read(make([]byte, 100))
		want("arb")
		c.pause()
		_ = c.Close() // ends a waiting Read
	})
}

// The tally is never less than the memory that decoding allocates. Copies of the message do not count.
func TestTally_CoversDecodingAllocations(t *testing.T) {
	items := func(n int, it *commonv1.StateItem) *runtimev1.SaveStateRequest {
		m := &runtimev1.SaveStateRequest{StoreName: "s"}
		for range n {
			m.States = append(m.States, it)
		}
		return m
	}
	entries := map[string]string{}
	for i := range 500 {
		entries[fmt.Sprint(i)] = ""
	}
	operations := &runtimev1.ExecuteStateTransactionRequest{}
	for range 900 {
		operations.Operations = append(operations.Operations,
			&runtimev1.TransactionalStateOperation{Request: &commonv1.StateItem{Options: &commonv1.StateOptions{}}})
	}
	for name, m := range map[string]proto.Message{
		"empty items": items(9000, &commonv1.StateItem{}),
		"full items": items(9000, &commonv1.StateItem{Key: "k", Etag: &commonv1.Etag{},
			Options: &commonv1.StateOptions{}, Metadata: map[string]string{"a": "b"}}),
		"metadata":      items(20, &commonv1.StateItem{Metadata: entries}),
		"keys":          &runtimev1.GetBulkStateRequest{Keys: strings.Split(strings.Repeat("k,", 9000), ",")},
		"operations":    operations,
		"one long text": &runtimev1.GetStateRequest{Key: strings.Repeat("k", 1<<20)},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		counted := tally{state: api.NewState(api.App{}, nil, api.Limits{}), shapes: new(sync.Map)}
		if err := counted.message(m.ProtoReflect().Descriptor(), data); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out := m.ProtoReflect().New().Interface()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err = proto.Unmarshal(data, out)
		runtime.ReadMemStats(&after)
		if took := int64(after.TotalAlloc - before.TotalAlloc); err != nil ||
			took > counted.memory+(costCopies-1)*int64(len(data)) {
			t.Errorf("%s: %d bytes become %d, and %d are counted beside the copies, %v", name, len(data), took,
				counted.memory, err)
		}
	}
}

// The limit of nested messages also applies to small messages, because clients in other languages read at most 100
// levels.
func TestReceiver_RefusesDeepNesting(t *testing.T) {
	nested := func(levels int) []byte {
		failure := &protos.TaskFailureDetails{}
		for range levels - 2 {
			failure = &protos.TaskFailureDetails{InnerFailure: failure}
		}
		data, err := proto.Marshal(&protos.ActivityResponse{FailureDetails: failure})
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > firstPiece {
			t.Fatalf("%d levels have %d bytes, and messages of this size are counted", levels, len(data))
		}
		return data
	}
	r := &receiver{}
	if err := r.decode(nested(maxNesting), &protos.ActivityResponse{}); err != nil {
		t.Errorf("%d levels: %v", maxNesting, err)
	}
	for _, levels := range []int{maxNesting + 1, 1000} {
		if r.decode(nested(levels), &protos.ActivityResponse{}) == nil {
			t.Errorf("a message with %d levels is accepted", levels)
		}
	}
}

func FuzzTally(f *testing.F) {
	f.Add([]byte("\x0a\x06orders\x12\x00\x12\x02\x0a\x00"))
	f.Add([]byte{0x12, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, m := range []proto.Message{&runtimev1.SaveStateRequest{}, &runtimev1.ExecuteStateTransactionRequest{},
			&runtimev1.BulkPublishRequest{}} {
			counted := tally{state: api.NewState(api.App{}, nil, api.Limits{}), shapes: new(sync.Map)}
			_ = counted.message(m.ProtoReflect().Descriptor(), data) // message must return, and must not panic
		}
	})
}

// readAnswer reserves memory for a large answer of an application before it reads the whole answer.
func TestInvoke_AnswerWaitsForMemory(t *testing.T) {
	s := &invokeMethods{core: &core{limit: DefaultMaxBodySize,
		answers: admission.New(admission.Options{Bytes: 8 << 20, LargePatience: 1, LargeTarget: 1, Penalty: 1})}}
	for _, length := range []int64{3 << 20, -1} {
		call := &arrival{Context: t.Context()}
		answer := func() (*http.Response, *strings.Reader) {
			body := strings.NewReader(strings.Repeat("x", 3<<20))
			return &http.Response{Body: io.NopCloser(body), ContentLength: length}, body
		}
		others := s.answers.Share()
		if !others.TryAdd(6 << 20) {
			t.Fatal("no room")
		}
		r, body := answer()
		if _, err := s.readAnswer(call, r); api.AsError(err).Kind != api.Indeterminate ||
			!strings.Contains(fmt.Sprint(err), "memory") {
			t.Errorf("length %d: got %v", length, err)
		}
		if read := int(body.Size()) - body.Len(); read > freeAnswer+1 {
			t.Errorf("length %d: %d bytes were read", length, read)
		}
		others.Release()
		r, _ = answer()
		if got, err := s.readAnswer(call, r); err != nil || len(got) != 3<<20 || !call.answer.Held() {
			t.Errorf("length %d: %d bytes, %v, memory held: %t", length, len(got), err, call.answer.Held())
		}
		call.answer.Release()
	}
}

// An answer without a length may be larger than what readAnswer reserves first. readAnswer then reserves more before
// it reads more.
func TestInvoke_AnswerWithoutLengthReservesWhatItReads(t *testing.T) {
	const budget, large = 64 << 20, 48 << 20 // three quarters are for large requests
	s := &invokeMethods{core: &core{limit: 16 << 20,
		answers: admission.New(admission.Options{Bytes: budget, Patience: 1, LargePatience: 1, Penalty: 1})}}
	call := &arrival{Context: t.Context()}
	read := func() ([]byte, int64, error) {
		body := strings.NewReader(strings.Repeat("x", 10<<20))
		got, err := s.readAnswer(call, &http.Response{Body: io.NopCloser(body), ContentLength: -1})
		return got, body.Size() - int64(body.Len()), err
	}
	others := s.answers.Share()
	if !others.TryAdd(large - answerCopies*DefaultMaxBodySize) {
		t.Fatal("no room")
	}
	if _, n, err := read(); api.AsError(err).Kind != api.Indeterminate || n > DefaultMaxBodySize+1 {
		t.Errorf("with little memory: %d bytes were read, %v", n, err)
	}
	call.answer.Release()
	others.Release()
	got, _, err := read()
	if err != nil || len(got) != 10<<20 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if others.TryAdd(large - answerCopies*int64(len(got)) + 1) {
		t.Error("less memory is reserved than the answer needs")
	}
	others.Release()
	call.answer.Release()
}

// An answer without a length needs no more memory than for twice its size, and no further reservation if it ends where
// the reserved memory ends.
func TestInvoke_AnswerWithoutLengthReservesLittleMore(t *testing.T) {
	const budget, large = 64 << 20, 48 << 20 // three quarters are for large requests
	for size, reserved := range map[int64]int64{
		freeAnswer:             0,
		DefaultMaxBodySize:     DefaultMaxBodySize,
		DefaultMaxBodySize + 1: 2 * DefaultMaxBodySize,
		2 * DefaultMaxBodySize: 2 * DefaultMaxBodySize,
	} {
		s := &invokeMethods{core: &core{limit: 16 << 20, answers: admission.New(admission.Options{Bytes: budget})}}
		call := &arrival{Context: t.Context()}
		body := io.NopCloser(strings.NewReader(strings.Repeat("x", int(size))))
		got, err := s.readAnswer(call, &http.Response{Body: body, ContentLength: -1})
		if err != nil || int64(len(got)) != size {
			t.Errorf("%d bytes: got %d, %v", size, len(got), err)
		}
		if call.answer.Held() != (reserved > 0) {
			t.Errorf("%d bytes: memory is reserved: %t", size, call.answer.Held())
		}
		others := s.answers.Share()
		if !others.TryAdd(large - answerCopies*reserved) {
			t.Errorf("%d bytes: more is reserved than for %d", size, reserved)
		}
	}
}

// lateWire is a stream whose next bytes, or whose end, come after the budget has cut the transfer.
type lateWire struct{ end error }

func (w lateWire) ReadMessageHeader([]byte) error {
	<-time.After(4 * admission.SlowAfter)
	return w.end
}

func (lateWire) RecvCompress() string { return "" }

// The last bytes of a request, or its end, arrive when the budget has just cut its transfer. The context of the call
// has ended then, so that the call must not begin.
func TestReceiver_CutAtTheEndIsOverloaded(t *testing.T) {
	for name, receive := range map[string]func(*receiver) error{
		"end": func(r *receiver) error {
			r.wire = lateWire{io.EOF}
			return r.end()
		},
		"last bytes": func(r *receiver) error {
			r.wire = lateWire{}
			return r.pieces(make([]byte, 1), true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := admission.New(admission.Options{Bytes: 8 << 20})
				ctx, cancel := context.WithCancel(t.Context())
				r := &receiver{arrival: &arrival{Context: ctx, cancel: cancel}, share: budget.Share()}
				if !r.share.TryAdd(4 << 20) {
					t.Fatal("no room")
				}
				other := budget.Share()
				waited := make(chan error)
				go func() { waited <- other.Add(t.Context(), 4<<20) }()
				synctest.Wait()
				err := receive(r)
				if ctx.Err() == nil {
					t.Error("the transfer was not cut")
				}
				if api.AsError(err).Kind != api.Unavailable {
					t.Errorf("got %v", err)
				}
				r.share.Release()
				if err := <-waited; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
