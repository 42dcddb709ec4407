package grpc_test

import (
	"context"
	"net"
	"testing"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	apigrpc "github.com/quorate/quorate/api/grpc"
	"github.com/quorate/quorate/api/workflows"
	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
)

// lostAnswers is an engine whose answers to starts and reruns are lost.
type lostAnswers struct {
	workflow.Engine
	begun chan struct{}
}

func (e *lostAnswers) lose(ctx context.Context) error {
	e.begun <- struct{}{}
	<-ctx.Done()
	return fault.New(fault.Indeterminate, "test", "an attempt may have been executed")
}

func (e *lostAnswers) Start(ctx context.Context, _ string, _ *protos.CreateInstanceRequest) error {
	return e.lose(ctx)
}

func (e *lostAnswers) Rerun(ctx context.Context, _ string, _ *protos.RerunWorkflowFromEventRequest) (string, error) {
	return "", e.lose(ctx)
}

// Clients repeat a call that is Unavailable. So a start that may have been stored must not get this code when the node
// stops. A repeated start would create a second instance, or fail because the first instance exists.
func TestTaskHub_StopOfNodeDuringStart(t *testing.T) {
	for name, call := range map[string]func(context.Context, protos.TaskHubSidecarServiceClient) error{
		"start": func(ctx context.Context, hub protos.TaskHubSidecarServiceClient) error {
			_, err := hub.StartInstance(ctx, &protos.CreateInstanceRequest{InstanceId: "i", Name: "order"})
			return err
		},
		"rerun": func(ctx context.Context, hub protos.TaskHubSidecarServiceClient) error {
			_, err := hub.RerunWorkflowFromEvent(ctx, &protos.RerunWorkflowFromEventRequest{SourceInstanceID: "i"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			engine := &lostAnswers{f.Workflows, make(chan struct{})}
			f.config.Workflows = workflows.New(workflows.Options{App: f.App, Engine: engine})
			server, err := apigrpc.New(f.config)
			if err != nil {
				t.Fatal(err)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server.Serve(l)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			answer := make(chan error)
			hub := protos.NewTaskHubSidecarServiceClient(dial(t, l.Addr().String()))
			go func() { answer <- call(ctx, hub) }()
			<-engine.begun
			if err := server.Close(ctx); err != nil {
				t.Error(err)
			}
			if err := <-answer; status.Code(err) != codes.Unknown {
				t.Errorf("the answer: %v", err)
			}
		})
	}
}
