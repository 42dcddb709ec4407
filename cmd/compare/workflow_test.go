package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// fakeEngine completes every workflow with the output in the field output, or with the expected output if it is nil.
type fakeEngine struct {
	protos.UnimplementedTaskHubSidecarServiceServer
	output  atomic.Pointer[string]
	workers atomic.Int32
}

func (f *fakeEngine) Hello(context.Context, *emptypb.Empty) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

func (f *fakeEngine) GetWorkItems(_ *protos.GetWorkItemsRequest,
	s protos.TaskHubSidecarService_GetWorkItemsServer) error {
	f.workers.Add(1)
	<-s.Context().Done()
	return nil
}

func (f *fakeEngine) StartInstance(_ context.Context, r *protos.CreateInstanceRequest) (
	*protos.CreateInstanceResponse, error) {
	return &protos.CreateInstanceResponse{InstanceId: r.GetName()}, nil
}

func (f *fakeEngine) WaitForInstanceCompletion(_ context.Context, r *protos.GetInstanceRequest) (
	*protos.GetInstanceResponse, error) {
	right := outputs[operation(r.GetInstanceId())]
	return &protos.GetInstanceResponse{Exists: true, WorkflowState: &protos.WorkflowState{
		InstanceId: r.GetInstanceId(), WorkflowStatus: protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED,
		Output: wrapperspb.String(*cmp.Or(f.output.Load(), &right))}}, nil
}

func TestEngine_RunsAndChecksWorkflows(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fake := &fakeEngine{}
	server := grpc.NewServer()
	protos.RegisterTaskHubSidecarServiceServer(server, fake)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	st, err := startEngine(t.Context(), &processes{}, "fake", "", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for op := range outputs {
		var got figures
		if err := load(t.Context(), &got, st, op, 3, 1, "", time.Millisecond); err != nil || got.count < 3 {
			t.Errorf("%s: %d instances, %v", op, got.count, err)
		}
	}
	if n := fake.workers.Load(); n != 1 {
		t.Errorf("%d workers are connected", n)
	}
	wrong := "33"
	fake.output.Store(&wrong)
	if err := st.(*engine).run(t.Context(), runChain); err == nil || !strings.Contains(err.Error(), `"33"`) {
		t.Errorf("a wrong output: %v", err)
	}
	st.end()
	server.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestOperation_HasItsNumbersOfClients(t *testing.T) {
	s := &settings{clients: []int{1, 64}, instances: []int{1, 30}}
	for op, want := range map[operation][]int{strongSave: {1, 64}, fireJobs: {64}, runChain: {1, 30}, runFanOut: {1},
		runTimer: {timersAtOnce}} {
		if got := op.clients(s); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", op, got, want)
		}
	}
}

func TestFigures_NameTheTimeOfTheWorker(t *testing.T) {
	f := figures{count: 10, elapsed: time.Second, cpu: time.Millisecond, worker: 2 * time.Millisecond}
	if got, want := f.String(), "10, 0s, 0s, 100µs, worker 200µs"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestWorkflows_LeaveOutMissingPrograms(t *testing.T) {
	s, err := parse([]string{"-daprd", "no-such-daprd", "-redis", "/bin/true", "-placement", "/bin/true",
		"-scheduler", "/bin/true"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var missing *missingError
	if _, err := workflowsDaprd(t.Context(), s, t.TempDir()); !errors.As(err, &missing) || missing.name != "daprd" {
		t.Errorf("%v", err)
	}
}
