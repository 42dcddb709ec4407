package grpc_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"github.com/dapr/durabletask-go/api/protos"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/api/runtimepb"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/admission"
)

const mib = 1 << 20

// raw returns a message whose encoding is data.
func raw(data []byte) *emptypb.Empty {
	m := &emptypb.Empty{}
	m.ProtoReflect().SetUnknown(data)
	return m
}

// emptyElements returns a message for the store orders with n empty elements of the field num.
func emptyElements(num byte, n int) *emptypb.Empty {
	return raw(append([]byte("\x0a\x06orders"), bytes.Repeat([]byte{num<<3 | 2, 0}, n)...))
}

// A call without a token is refused even if its message never arrives. This does not depend on the timeout of the
// call.
func TestCall_RefusedBeforeItsMessage(t *testing.T) {
	for _, timeout := range []string{"", "1S", "1H"} {
		f := newFixture(t)
		f.config.Tokens = apitest.Tokens("the-right-one")
		f.config.RequestTimeout = time.Minute
		w := knock(t, f.serve(t))
		var more []hpack.HeaderField
		if timeout != "" {
			more = append(more, hpack.HeaderField{Name: "grpc-timeout", Value: timeout})
		}
		for i := range uint32(50) {
			w.begin(2*i+1, getState, more...)
			if got := w.status(2*i + 1); got != "16" {
				t.Fatalf("time-out %q: call %d ends with the code %s", timeout, i, got)
			}
		}
		if got := f.calls(t, "GetState", "Unauthenticated"); got != 50 {
			t.Errorf("time-out %q: %v were counted", timeout, got)
		}
	}
}

// Methods that need no token accept small messages only.
func TestHealth_RefusesLargeMessageWithoutToken(t *testing.T) {
	f := newFixture(t)
	f.config.Tokens = apitest.Tokens("the-right-one")
	health := healthv1.NewHealthClient(f.serve(t))
	large := &healthv1.HealthCheckRequest{Service: strings.Repeat("x", 5000)}
	_, err := health.Check(t.Context(), large)
	wantCode(t, err, codes.ResourceExhausted)
	watch, err := health.Watch(t.Context(), large)
	must(t, err)
	_, err = watch.Recv()
	wantCode(t, err, codes.ResourceExhausted)
	_, err = health.Check(t.Context(), &healthv1.HealthCheckRequest{})
	must(t, err)
}

// Too many elements are refused before they are decoded. Decoded, 4 MiB of empty elements would take hundreds of MiB.
func TestReceive_TooManyElementsAreNotDecoded(t *testing.T) {
	conn := newFixture(t).serve(t)
	entries := &runtimev1.InvokeBindingRequest{Name: "b", Metadata: map[string]string{}}
	for i := range 2000 {
		entries.Metadata[fmt.Sprint(i)] = "v"
	}
	deep, err := proto.Marshal(entries)
	must(t, err)
	item, err := proto.Marshal(&runtimev1.SaveStateRequest{StoreName: "orders",
		States: []*commonv1.StateItem{{Key: "a", Metadata: entries.Metadata}}})
	must(t, err)
	for _, row := range []struct {
		method  string
		message *emptypb.Empty
		want    string
	}{
		{"SaveState", emptyElements(2, 2*mib-8), "too many items in one save"},
		{"SaveState", emptyElements(2, 10_001), "too many items in one save: 10001; the limit is 10000"},
		{"DeleteBulkState", emptyElements(2, 2*mib-8), "too many keys in one delete"},
		{"GetBulkState", emptyElements(2, 2*mib-8), "too many keys in one bulk read"},
		{"ExecuteStateTransaction", emptyElements(2, 2*mib-8),
			"transaction in state store orders has too many operations"},
		{"ExecuteStateTransaction", raw(append(bytes.Repeat([]byte{2<<3 | 2, 0}, 2*mib-8), "\x0a\x06orders"...)),
			"transaction in state store orders has too many operations"},
		{"ExecuteActorStateTransaction", emptyElements(3, 2*mib-8), "too many operations"},
		{"InvokeBinding", raw(deep), "too many entries in one metadata"},
		{"SaveState", raw(item), "too many entries in one metadata"},
		{"PublishEvent", emptyElements(5, 2*mib-8), "too many entries in one metadata"},
		{"BulkPublishEventAlpha1", emptyElements(3, 2*mib-8), "too many elements in one list"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := conn.Invoke(t.Context(), "/dapr.proto.runtime.v1.Dapr/"+row.method, row.message, &emptypb.Empty{})
		runtime.ReadMemStats(&after)
		if st := wantCode(t, err, codes.InvalidArgument); !strings.Contains(st.Message(), row.want) {
			t.Errorf("%s: %q, want %q", row.method, st.Message(), row.want)
		}
		if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 80 { // includes the client
			t.Errorf("%s: %d MiB were allocated", row.method, took)
		}
	}
}

// A client that announces a large message but does not send it reserves no memory.
func TestReceive_UnsentMessagesReserveNoMemory(t *testing.T) {
	f := newFixture(t)
	f.config.RequestTimeout = patience
	f.config.Requests = admission.New(admission.Options{Bytes: 8 * mib})
	conn := f.serve(t)
	w := knock(t, conn)
	for i := range uint32(100) {
		w.begin(2*i+1, getState)
		w.send(2*i+1, 4*mib, 1000)
	}
	_, err := runtimev1.NewDaprClient(conn).SaveState(t.Context(), large(1*mib))
	must(t, err)
}

func large(size int) *runtimev1.SaveStateRequest {
	return &runtimev1.SaveStateRequest{StoreName: "orders",
		States: []*commonv1.StateItem{{Key: "large", Value: bytes.Repeat([]byte("7"), size)}}}
}

// A stalled call that has reserved memory is aborted when other requests need the memory. Until then, the other
// requests fail with overloaded.
func TestReceive_SlowMessageIsCutWhenMemoryIsShort(t *testing.T) {
	for name, sent := range map[string]int{"incomplete message": 100 << 10, "request without an end": mib + mib/2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cutSlowMessage(t, sent)
		})
	}
}

// cutSlowMessage begins a call with a message of 1.5 MiB, sends that number of bytes of it, and never ends the request.
func cutSlowMessage(t *testing.T, sent int) {
	t.Helper()
	f := newFixture(t)
	f.config.RequestTimeout = patience
	f.config.Requests = admission.New(admission.Options{Name: "requests", Bytes: 8 * mib, Registerer: f.Metrics})
	conn := f.serve(t)
	w := knock(t, conn)
	w.begin(1, "/dapr.proto.runtime.v1.Dapr/SaveState")
	w.send(1, mib+mib/2, sent) // reserves 4.5 of the 6 MiB for large messages
	eventually(t, "memory is reserved", func() bool {
		return f.metric(t, "quorate_request_memory_bytes", "requests", "large") > 4*mib
	})
	c := runtimev1.NewDaprClient(conn)
	eventually(t, "the slow message is cut", func() bool {
		_, err := c.SaveState(t.Context(), large(mib+mib/2))
		if err != nil {
			if st := wantCode(t, err, codes.Unavailable); infoOf(st).GetReason() != api.CodeOverloaded {
				t.Fatal(st)
			}
		}
		return err == nil
	})
	if got := w.status(1); got != "14" {
		t.Errorf("the slow call ends with the code %s", got)
	}
	if free := f.metric(t, "quorate_request_memory_bytes", "requests", "large"); free != 0 {
		t.Errorf("%v bytes stay reserved", free)
	}
}

func TestOverload_IsUnavailableAlsoForTransactions(t *testing.T) {
	f := newFixture(t)
	f.config.Requests = admission.New(admission.Options{Bytes: mib, LargePatience: 50 * time.Millisecond})
	if !f.config.Requests.TryAcquire(600 << 10) {
		t.Fatal("the budget is in use")
	}
	_, err := f.client(t).ExecuteStateTransaction(t.Context(),
		&runtimev1.ExecuteStateTransactionRequest{StoreName: "orders",
			Operations: []*runtimev1.TransactionalStateOperation{{OperationType: "upsert",
				Request: large(mib).States[0]}}})
	wantCode(t, err, codes.Unavailable)
}

func TestReceive_CompressedMessageWithinLimit(t *testing.T) {
	f := newFixture(t)
	f.config.MaxBodySize = mib
	c := f.client(t)
	_, err := c.SaveState(t.Context(), large(mib/2), grpc.UseCompressor(gzip.Name))
	must(t, err)
	got, err := c.GetState(t.Context(), &runtimev1.GetStateRequest{StoreName: "orders", Key: "large"},
		grpc.UseCompressor(gzip.Name))
	must(t, err)
	if len(got.GetData()) != mib/2 {
		t.Errorf("%d bytes", len(got.GetData()))
	}
	_, err = c.SaveState(t.Context(), large(4*mib), grpc.UseCompressor(gzip.Name))
	wantCode(t, err, codes.ResourceExhausted)
}

func TestAnswer_LargeIsComplete(t *testing.T) {
	f := newFixture(t)
	f.config.Answers = admission.New(admission.Options{Name: "answers", Registerer: f.Metrics})
	c := runtimev1.NewDaprClient(f.serve(t))
	for _, size := range []int{0, 1, 64 << 10, 65<<10 + 1, 256 << 10, 256<<10 + 1, 512<<10 + 1, 3*mib + 5} {
		value := make([]byte, size)
		for i := range value {
			value[i] = byte('0' + i%7)
		}
		_, err := c.SaveState(t.Context(), &runtimev1.SaveStateRequest{StoreName: "orders",
			States: []*commonv1.StateItem{{Key: "k", Value: value,
				Metadata: map[string]string{"contentType": "application/octet-stream"}}}})
		must(t, err)
		got, err := c.GetState(t.Context(), &runtimev1.GetStateRequest{StoreName: "orders", Key: "k"})
		must(t, err)
		if !slices.Equal(got.GetData(), value) || got.GetEtag() == "" ||
			got.GetMetadata()["contentType"] != "application/octet-stream" {
			t.Errorf("%d bytes: %d bytes, ETag %q, %v", size, len(got.GetData()), got.GetEtag(), got.GetMetadata())
		}
		bulk, err := c.GetBulkState(t.Context(),
			&runtimev1.GetBulkStateRequest{StoreName: "orders", Keys: []string{"k"}})
		must(t, err)
		if !slices.Equal(bulk.GetItems()[0].GetData(), value) {
			t.Errorf("%d bytes: the bulk read differs", size)
		}
		eventually(t, "memory is given back", func() bool {
			return f.metric(t, "quorate_request_memory_bytes", "answers", "small")+f.metric(t,
				"quorate_request_memory_bytes", "answers", "large") == 0
		})
	}
}

// A bulk read with an invalid key is refused at once, even while large answers use their whole memory.
func TestBulkRead_InvalidKeyNeedsNoMemory(t *testing.T) {
	f := newFixture(t)
	f.config.Answers = admission.New(admission.Options{Bytes: 4 * mib, Patience: 1, LargePatience: 1, Target: 1,
		Penalty: 1})
	if hold := f.config.Answers.Share(); !hold.TryAdd(3 * mib) {
		t.Fatal("the budget is not empty")
	}
	_, err := f.client(t).GetBulkState(t.Context(),
		&runtimev1.GetBulkStateRequest{StoreName: "orders", Keys: []string{strings.Repeat("x", 5000)}})
	wantCode(t, err, codes.InvalidArgument)
}

// reporting is a store with a large value. Only its first read reports a lost write.
type reporting struct {
	state.Store
	reads *atomic.Int64
}

func (s reporting) Get(_ context.Context, r state.GetRequest) (state.Item, error) {
	item := state.Item{ETag: "1", Size: mib, Proof: state.Proof{Level: state.SessionLevel}}
	if s.reads.Add(1) == 1 {
		item.Level = state.Stale
	}
	if r.MaxValue == 0 {
		item.Value, item.Size = make([]byte, mib), 0
	}
	return item, nil
}

// A large value is read twice. The answer has the report of the first read.
func TestAnswer_LargeValueKeepsReport(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	store := reporting{reads: &atomic.Int64{}}
	f.Stores.List = []*state.Instance{apitest.Instance("orders", store)}
	var header metadata.MD
	got, err := f.client(t).GetState(t.Context(), &runtimev1.GetStateRequest{StoreName: "orders", Key: "a"},
		grpc.Header(&header))
	must(t, err)
	if level := header.Get("Quorate-Consistency"); len(level) != 1 || level[0] != "stale" ||
		store.reads.Load() != 2 || len(got.GetData()) != mib {
		t.Errorf("%d bytes at level %q after %d reads", len(got.GetData()), level, store.reads.Load())
	}
}

// An answer keeps its memory reserved until the client has read it. If other answers need the memory, the connection
// of that client is closed.
func TestAnswer_SlowReaderIsCutWhenMemoryIsShort(t *testing.T) {
	f := newFixture(t)
	f.config.Answers = admission.New(admission.Options{Name: "answers", Bytes: 4 * mib, Registerer: f.Metrics})
	conn := f.serve(t)
	c := runtimev1.NewDaprClient(conn)
	_, err := c.SaveState(t.Context(), large(2*mib))
	must(t, err)
	held := func() float64 { return f.metric(t, "quorate_request_memory_bytes", "answers", "large") }
	ask := func() *wire {
		w := knock(t, conn)
		w.begin(1, getState)
		body, err := proto.Marshal(&runtimev1.GetStateRequest{StoreName: "orders", Key: "large"})
		must(t, err)
		must(t, w.WriteData(1, true, append([]byte{0, 0, 0, 0, byte(len(body))}, body...)))
		return w
	}
	w := ask()
	eventually(t, "memory is reserved", func() bool { return held() > 2*mib })
	eventually(t, "the slow reader is cut", func() bool {
		_, err := c.GetState(t.Context(), &runtimev1.GetStateRequest{StoreName: "orders", Key: "large"})
		if err != nil {
			wantCode(t, err, codes.Unavailable)
		}
		return err == nil
	})
	if !w.ends() {
		t.Error("the slow connection stays open")
	}
	eventually(t, "memory is given back", func() bool { return held() == 0 })

	w = ask() // a client that closes its connection
	eventually(t, "memory is reserved", func() bool { return held() > 2*mib })
	_ = w.Conn.Close()
	eventually(t, "memory is given back", func() bool { return held() == 0 })

	w = ask() // a client that cancels its call
	eventually(t, "memory is reserved", func() bool { return held() > 2*mib })
	must(t, w.WriteRSTStream(1, http2.ErrCodeCancel))
	eventually(t, "memory is given back", func() bool { return held() == 0 })
}

// A bulk read whose values are too large in total is refused before all of them are read.
func TestBulkRead_BoundedBySize(t *testing.T) {
	f := newFixture(t)
	f.config.Answers = admission.New(admission.Options{Name: "answers", Registerer: f.Metrics})
	c := runtimev1.NewDaprClient(f.serve(t))
	_, err := c.SaveState(t.Context(), large(mib))
	must(t, err)
	read := func(keys int) (*runtimev1.GetBulkStateResponse, error) {
		return c.GetBulkState(t.Context(), &runtimev1.GetBulkStateRequest{StoreName: "orders",
			Keys: slices.Repeat([]string{"large"}, keys)})
	}
	three, err := read(3)
	must(t, err)
	if got := three.GetItems(); len(got) != 3 || len(got[2].GetData()) != mib {
		t.Errorf("%d items", len(got))
	}
	_, err = read(5000)
	if st := wantCode(t, err, codes.InvalidArgument); !strings.Contains(st.Message(), "read fewer keys at once") {
		t.Error(st)
	}
	for _, size := range []string{"small", "large"} {
		if left := f.metric(t, "quorate_request_memory_bytes", "answers", size); left != 0 {
			t.Errorf("%v bytes of %s answers stay reserved", left, size)
		}
	}
}

// If memory is short, a large value is dropped, and read again once memory is reserved for it.
func TestAnswer_LargeValueWaitsForMemory(t *testing.T) {
	f := newFixture(t)
	f.config.Answers = admission.New(admission.Options{Name: "answers", Bytes: 4 * mib, Registerer: f.Metrics})
	c := runtimev1.NewDaprClient(f.serve(t))
	_, err := c.SaveState(t.Context(), large(2*mib))
	must(t, err)
	others := f.config.Answers.Share()
	if !others.TryAdd(3 * mib) {
		t.Fatal("no room")
	}
	done := make(chan error, 1)
	go func() {
		got, err := c.GetState(t.Context(), &runtimev1.GetStateRequest{StoreName: "orders", Key: "large"})
		if err == nil && len(got.GetData()) != 2*mib {
			err = fmt.Errorf("%d bytes", len(got.GetData()))
		}
		done <- err
	}()
	eventually(t, "the answer waits", func() bool {
		return f.metric(t, "quorate_request_memory_waiting", "answers", "large") == 1
	})
	others.Release()
	must(t, <-done)
}

// If there is no memory for the answer of an executed call, the error must not tell the client that the call had no
// effect.
func TestAnswer_DroppedAfterCallIsIndeterminate(t *testing.T) {
	f := newFixture(t)
	f.config.Answers = admission.New(admission.Options{Name: "answers", Bytes: 4 * mib, LargePatience: 1,
		LargeTarget: 1, Penalty: 1})
	c := runtimev1.NewDaprClient(f.serve(t))
	others := f.config.Answers.Share()
	if !others.TryAdd(3 * mib) {
		t.Fatal("no room")
	}
	defer others.Release()
	_, err := c.InvokeBinding(t.Context(), &runtimev1.InvokeBindingRequest{Name: "events", Operation: "create",
		Data: bytes.Repeat([]byte("x"), 2*mib)}) // the answer repeats the data
	if st := wantCode(t, err, codes.Unknown); !strings.Contains(st.Message(), "was executed") {
		t.Error(st)
	}
}

// A list of jobs is refused if there is no memory for it, or if it is too large for one answer.
func TestListJobs_BoundedByMemory(t *testing.T) {
	f := newFixture(t)
	f.config.Answers = admission.New(admission.Options{Name: "answers", Bytes: 4 * mib, LargePatience: 1,
		LargeTarget: 1, Penalty: 1})
	c := runtimev1.NewDaprClient(f.serve(t))
	schedule := func(name string) {
		due := "1h"
		_, err := c.ScheduleJob(t.Context(), &runtimev1.ScheduleJobRequest{Job: &runtimev1.Job{Name: name,
			DueTime: &due, Data: &anypb.Any{Value: make([]byte, mib)}}})
		must(t, err)
	}
	schedule("a")
	others := f.config.Answers.Share()
	if !others.TryAdd(3 * mib) {
		t.Fatal("no room")
	}
	_, err := c.ListJobs(t.Context(), &runtimev1.ListJobsRequest{})
	wantCode(t, err, codes.Unavailable)
	others.Release()
	list, err := c.ListJobs(t.Context(), &runtimev1.ListJobsRequest{})
	must(t, err)
	if len(list.GetJobs()) != 1 {
		t.Errorf("%d jobs", len(list.GetJobs()))
	}
	for i := range 32 {
		schedule(fmt.Sprint("b", i))
	}
	_, err = c.ListJobs(t.Context(), &runtimev1.ListJobsRequest{})
	if st := wantCode(t, err, codes.InvalidArgument); !strings.Contains(st.Message(), "list them in pages") {
		t.Error(st)
	}
}

// A stream from the server may last for days. It keeps no memory for its request once the request is executed.
func TestStreams_KeepNoMemoryForTheirRequest(t *testing.T) {
	f := newFixture(t)
	f.config.Requests = admission.New(admission.Options{Name: "requests", Bytes: 8 * mib, Registerer: f.Metrics})
	conn := f.serve(t)
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, mib+mib/2))
	for method, request := range map[string]proto.Message{
		"/quorate.runtime.v1.State/Watch": &runtimepb.WatchRequest{StoreName: "orders"},
		"/dapr.proto.runtime.v1.Dapr/SubscribeConfiguration": &runtimev1.SubscribeConfigurationRequest{
			StoreName: "items"},
		"/TaskHubSidecarService/GetWorkItems": &protos.GetWorkItemsRequest{},
	} {
		t.Run(method, func(t *testing.T) {
			request.ProtoReflect().SetUnknown(unknown)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
			must(t, err)
			must(t, stream.SendMsg(request))
			must(t, stream.CloseSend())
			_, err = stream.Header() // comes with the first message, or before it
			must(t, err)
			if kept := f.metric(t, "quorate_request_memory_bytes", "requests", "large"); kept != 0 {
				t.Errorf("%v bytes stay reserved", kept)
			}
		})
	}
}
