package grpc

import (
	"context"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/workflows"
)

// workflowMethods serves workflows with the methods of Dapr's service. Each method exists under two names with the same
// meaning, because the API has two versions.
type workflowMethods struct {
	workflows *workflows.Service
}

// optionStartTime is the name of the option that sets when the first turn of a new instance runs.
const optionStartTime = "dapr.workflow.start_time"

// StartWorkflowBeta1 starts an instance.
func (s *workflowMethods) StartWorkflowBeta1(ctx context.Context,
	in *runtimev1.StartWorkflowRequest) (*runtimev1.StartWorkflowResponse, error) {
	id, err := s.workflows.Start(ctx, &workflows.StartRequest{ID: in.GetInstanceId(), Workflow: in.GetWorkflowName(),
		Input: payload(in.GetInput()), At: in.GetOptions()[optionStartTime], Trace: first(ctx, "traceparent")})
	if err != nil {
		return nil, err
	}
	return &runtimev1.StartWorkflowResponse{InstanceId: id}, nil
}

// payload returns b as a workflow payload, which is text, or nil if b is empty.
func payload(b []byte) *wrapperspb.StringValue {
	if len(b) == 0 {
		return nil
	}
	return wrapperspb.String(string(b))
}

// GetWorkflowBeta1 describes an instance. The answer for an instance that does not exist has only the id.
func (s *workflowMethods) GetWorkflowBeta1(ctx context.Context,
	in *runtimev1.GetWorkflowRequest) (*runtimev1.GetWorkflowResponse, error) {
	state, err := s.workflows.Get(ctx, in.GetInstanceId(), "")
	if err != nil {
		if e := api.AsError(err); e.Kind == api.NotFound {
			return &runtimev1.GetWorkflowResponse{InstanceId: in.GetInstanceId()}, nil
		}
		return nil, err
	}
	return describeInstance(state), nil
}

func describeInstance(state *protos.WorkflowState) *runtimev1.GetWorkflowResponse {
	return &runtimev1.GetWorkflowResponse{InstanceId: state.GetInstanceId(), WorkflowName: state.GetName(),
		CreatedAt: state.GetCreatedTimestamp(), LastUpdatedAt: state.GetLastUpdatedTimestamp(),
		RuntimeStatus: workflows.StatusText(state.GetWorkflowStatus()), Properties: workflows.Properties(state)}
}

// TerminateWorkflowBeta1 ends an instance and its children.
func (s *workflowMethods) TerminateWorkflowBeta1(ctx context.Context,
	in *runtimev1.TerminateWorkflowRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.workflows.Terminate(ctx, in.GetInstanceId(), "")
}

// PauseWorkflowBeta1 suspends an instance.
func (s *workflowMethods) PauseWorkflowBeta1(ctx context.Context,
	in *runtimev1.PauseWorkflowRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.workflows.Pause(ctx, in.GetInstanceId(), "")
}

// ResumeWorkflowBeta1 resumes a suspended instance.
func (s *workflowMethods) ResumeWorkflowBeta1(ctx context.Context,
	in *runtimev1.ResumeWorkflowRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.workflows.Resume(ctx, in.GetInstanceId(), "")
}

// PurgeWorkflowBeta1 removes a terminal instance and its children.
func (s *workflowMethods) PurgeWorkflowBeta1(ctx context.Context,
	in *runtimev1.PurgeWorkflowRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.workflows.Purge(ctx, in.GetInstanceId(), "")
}

// RaiseEventWorkflowBeta1 stores an external event for an instance.
func (s *workflowMethods) RaiseEventWorkflowBeta1(ctx context.Context,
	in *runtimev1.RaiseEventWorkflowRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.workflows.Raise(ctx, in.GetInstanceId(), "", in.GetEventName(),
		payload(in.GetEventData()))
}

// StartWorkflowAlpha1 is StartWorkflowBeta1 under its older name.
func (s *workflowMethods) StartWorkflowAlpha1(ctx context.Context,
	in *runtimev1.StartWorkflowRequest) (*runtimev1.StartWorkflowResponse, error) {
	return s.StartWorkflowBeta1(ctx, in)
}

// GetWorkflowAlpha1 is GetWorkflowBeta1 under its older name.
func (s *workflowMethods) GetWorkflowAlpha1(ctx context.Context,
	in *runtimev1.GetWorkflowRequest) (*runtimev1.GetWorkflowResponse, error) {
	return s.GetWorkflowBeta1(ctx, in)
}

// TerminateWorkflowAlpha1 is TerminateWorkflowBeta1 under its older name.
func (s *workflowMethods) TerminateWorkflowAlpha1(ctx context.Context,
	in *runtimev1.TerminateWorkflowRequest) (*emptypb.Empty, error) {
	return s.TerminateWorkflowBeta1(ctx, in)
}

// PauseWorkflowAlpha1 is PauseWorkflowBeta1 under its older name.
func (s *workflowMethods) PauseWorkflowAlpha1(ctx context.Context,
	in *runtimev1.PauseWorkflowRequest) (*emptypb.Empty, error) {
	return s.PauseWorkflowBeta1(ctx, in)
}

// ResumeWorkflowAlpha1 is ResumeWorkflowBeta1 under its older name.
func (s *workflowMethods) ResumeWorkflowAlpha1(ctx context.Context,
	in *runtimev1.ResumeWorkflowRequest) (*emptypb.Empty, error) {
	return s.ResumeWorkflowBeta1(ctx, in)
}

// PurgeWorkflowAlpha1 is PurgeWorkflowBeta1 under its older name.
func (s *workflowMethods) PurgeWorkflowAlpha1(ctx context.Context,
	in *runtimev1.PurgeWorkflowRequest) (*emptypb.Empty, error) {
	return s.PurgeWorkflowBeta1(ctx, in)
}

// RaiseEventWorkflowAlpha1 is RaiseEventWorkflowBeta1 under its older name.
func (s *workflowMethods) RaiseEventWorkflowAlpha1(ctx context.Context,
	in *runtimev1.RaiseEventWorkflowRequest) (*emptypb.Empty, error) {
	return s.RaiseEventWorkflowBeta1(ctx, in)
}
