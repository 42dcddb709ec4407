package grpc

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/workflows"
	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
)

// hubServer implements TaskHubSidecarService, which the workflow SDKs call. With it, clients start and change
// instances, and workers receive work items.
type hubServer struct {
	protos.UnimplementedTaskHubSidecarServiceServer
	*core
	workflows *workflows.Service
}

// waits reports whether calls of a method may wait for an instance. Only the deadline of the client limits such calls.
func waits(method string) bool {
	switch method {
	case protos.TaskHubSidecarService_StartInstance_FullMethodName,
		protos.TaskHubSidecarService_WaitForInstanceStart_FullMethodName,
		protos.TaskHubSidecarService_WaitForInstanceCompletion_FullMethodName,
		protos.TaskHubSidecarService_TerminateInstance_FullMethodName,
		protos.TaskHubSidecarService_SuspendInstance_FullMethodName,
		protos.TaskHubSidecarService_ResumeInstance_FullMethodName,
		protos.TaskHubSidecarService_RerunWorkflowFromEvent_FullMethodName:
		return true
	}
	return false
}

// refusal converts an error to the gRPC error that clients of workflows expect. missing is the code for an instance
// that does not exist. invalid is the code for a call that the request or the state of the instance does not allow.
func refusal(err error, missing, invalid codes.Code) error {
	if err == nil {
		return nil
	}
	e := api.AsError(err)
	if e.Code != api.CodeWorkflow {
		return err
	}
	switch fault.CodeOf(e.Cause) {
	case fault.Conflict:
		return status.Error(codes.AlreadyExists, e.Message)
	case fault.NotFound:
		return status.Error(missing, e.Message)
	case fault.Invalid:
		return status.Error(invalid, e.Message)
	}
	return err
}

// bound returns a context that also ends when the server closes.
func (s *hubServer) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life, func() { cancel(errClosing()) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

func errClosing() error {
	return status.Error(codes.Unavailable, "the node is stopping")
}

// ended converts the error of a call that has waited for an instance. If the server closed during the wait, the result
// makes clients retry the call on another node, unless the call may have stored a change.
func (s *hubServer) ended(ctx context.Context, err error) error {
	if err != nil && s.life.Err() != nil && ctx.Err() == nil && api.AsError(err).Kind != api.Indeterminate {
		return errClosing()
	}
	return refusal(err, codes.Unknown, codes.Unknown)
}

// created converts the error of a call that creates an instance. err must not be nil. Normally created returns
// refusal(err, missing, invalid). If the server closes and certainly no instance was created, the result makes clients
// retry the call on another node.
func (s *hubServer) created(ctx context.Context, err error, missing, invalid codes.Code) error {
	if s.life.Err() != nil && ctx.Err() == nil && api.AsError(err).Kind != api.Indeterminate {
		return errClosing()
	}
	return refusal(err, missing, invalid)
}

// Hello answers the keepalive calls of workers.
func (s *hubServer) Hello(context.Context, *emptypb.Empty) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

// StartInstance creates an instance and waits for its first turn.
func (s *hubServer) StartInstance(ctx context.Context,
	in *protos.CreateInstanceRequest) (*protos.CreateInstanceResponse, error) {
	if in.ParentTraceContext == nil {
		in.ParentTraceContext = workflows.Trace(first(ctx, "traceparent"))
	}
	parked, cancel := s.bound(ctx)
	defer cancel()
	id, err := s.workflows.StartInstance(parked, in)
	if err != nil {
		return nil, s.created(ctx, err, codes.Unknown, codes.Unknown)
	}
	return &protos.CreateInstanceResponse{InstanceId: id}, nil
}

// GetInstance returns the state of an instance.
func (s *hubServer) GetInstance(ctx context.Context,
	in *protos.GetInstanceRequest) (*protos.GetInstanceResponse, error) {
	state, err := s.workflows.GetInstance(ctx, in)
	if err != nil {
		return nil, refusal(err, codes.Unknown, codes.Unknown)
	}
	return &protos.GetInstanceResponse{Exists: state != nil, WorkflowState: state}, nil
}

// WaitForInstanceStart waits until the first turn of an instance has run.
func (s *hubServer) WaitForInstanceStart(ctx context.Context,
	in *protos.GetInstanceRequest) (*protos.GetInstanceResponse, error) {
	return s.waitFor(ctx, in, workflow.Started)
}

// WaitForInstanceCompletion waits until an instance has ended.
func (s *hubServer) WaitForInstanceCompletion(ctx context.Context,
	in *protos.GetInstanceRequest) (*protos.GetInstanceResponse, error) {
	return s.waitFor(ctx, in, workflow.Completed)
}

func (s *hubServer) waitFor(ctx context.Context, in *protos.GetInstanceRequest,
	until workflow.Until) (*protos.GetInstanceResponse, error) {
	parked, cancel := s.bound(ctx)
	defer cancel()
	state, err := s.workflows.WaitFor(parked, in, until)
	if err != nil {
		return nil, s.ended(ctx, err)
	}
	return &protos.GetInstanceResponse{Exists: true, WorkflowState: state}, nil
}

// RaiseEvent stores an external event for an instance.
func (s *hubServer) RaiseEvent(ctx context.Context,
	in *protos.RaiseEventRequest) (*protos.RaiseEventResponse, error) {
	err := s.workflows.RaiseEvent(ctx, in)
	return &protos.RaiseEventResponse{}, refusal(err, codes.Unknown, codes.Unknown)
}

// TerminateInstance ends an instance and waits until it has ended.
func (s *hubServer) TerminateInstance(ctx context.Context,
	in *protos.TerminateRequest) (*protos.TerminateResponse, error) {
	parked, cancel := s.bound(ctx)
	defer cancel()
	return &protos.TerminateResponse{}, s.ended(ctx, s.workflows.TerminateInstance(parked, in))
}

// SuspendInstance suspends an instance and waits until it is suspended or has ended.
func (s *hubServer) SuspendInstance(ctx context.Context,
	in *protos.SuspendRequest) (*protos.SuspendResponse, error) {
	parked, cancel := s.bound(ctx)
	defer cancel()
	return &protos.SuspendResponse{}, s.ended(ctx, s.workflows.SuspendInstance(parked, in))
}

// ResumeInstance resumes a suspended instance and waits until the instance runs or has ended.
func (s *hubServer) ResumeInstance(ctx context.Context, in *protos.ResumeRequest) (*protos.ResumeResponse, error) {
	parked, cancel := s.bound(ctx)
	defer cancel()
	return &protos.ResumeResponse{}, s.ended(ctx, s.workflows.ResumeInstance(parked, in))
}

// PurgeInstances removes one instance, or those that match a filter.
func (s *hubServer) PurgeInstances(ctx context.Context,
	in *protos.PurgeInstancesRequest) (*protos.PurgeInstancesResponse, error) {
	removed, complete, err := s.workflows.PurgeInstances(ctx, in)
	if err != nil {
		return nil, refusal(err, codes.Unknown, codes.Unknown)
	}
	return &protos.PurgeInstancesResponse{DeletedInstanceCount: int32(removed), //nolint:gosec // far fewer
		IsComplete: wrapperspb.Bool(complete)}, nil
}

// ListInstanceIDs lists the instances of the application.
func (s *hubServer) ListInstanceIDs(ctx context.Context,
	in *protos.ListInstanceIDsRequest) (*protos.ListInstanceIDsResponse, error) {
	ids, next, err := s.workflows.ListInstanceIDs(ctx, in)
	if err != nil {
		return nil, refusal(err, codes.NotFound, codes.InvalidArgument)
	}
	out := &protos.ListInstanceIDsResponse{InstanceIds: ids}
	if next != "" {
		out.ContinuationToken = &next
	}
	return out, nil
}

// GetInstanceHistory returns the events of an instance.
func (s *hubServer) GetInstanceHistory(ctx context.Context,
	in *protos.GetInstanceHistoryRequest) (*protos.GetInstanceHistoryResponse, error) {
	out, err := s.workflows.GetInstanceHistory(ctx, in.GetInstanceId(), func(bytes int64) error {
		return s.hold(ctx, bytes)
	})
	if err != nil {
		return nil, refusal(err, codes.NotFound, codes.Unknown)
	}
	return out, nil
}

// RerunWorkflowFromEvent creates an instance from the history of another one.
func (s *hubServer) RerunWorkflowFromEvent(ctx context.Context,
	in *protos.RerunWorkflowFromEventRequest) (*protos.RerunWorkflowFromEventResponse, error) {
	parked, cancel := s.bound(ctx)
	defer cancel()
	id, err := s.workflows.Rerun(parked, in)
	if err != nil {
		return nil, s.created(ctx, err, codes.NotFound, codes.InvalidArgument)
	}
	return &protos.RerunWorkflowFromEventResponse{NewInstanceID: id}, nil
}

// CompleteActivityTask stores the result of an activity.
func (s *hubServer) CompleteActivityTask(ctx context.Context,
	in *protos.ActivityResponse) (*protos.CompleteTaskResponse, error) {
	err := s.workflows.CompleteActivity(ctx, in)
	return &protos.CompleteTaskResponse{}, refusal(err, codes.Unknown, codes.InvalidArgument)
}

// CompleteWorkflowTask stores the answer of a worker to a turn of a workflow.
func (s *hubServer) CompleteWorkflowTask(ctx context.Context,
	in *protos.WorkflowResponse) (*protos.CompleteTaskResponse, error) {
	err := s.workflows.CompleteTurn(ctx, in)
	return &protos.CompleteTaskResponse{}, refusal(err, codes.Unknown, codes.InvalidArgument)
}

// CompleteOrchestratorTask is CompleteWorkflowTask under its older name.
func (s *hubServer) CompleteOrchestratorTask(ctx context.Context,
	in *protos.WorkflowResponse) (*protos.CompleteTaskResponse, error) {
	return s.CompleteWorkflowTask(ctx, in)
}

// maxLost limits how many bytes of an oversized answer are read: maxLost times the size limit. Fields after these
// bytes, such as the completion token, stay unknown.
const maxLost = 8

// lost returns a function that handles a worker's answer that exceeds a limit, for example the size limit of messages.
// The result is nil if workers send no answers with the given method. It is not sufficient to refuse such an answer:
// the worker does not answer twice, so the work item would stay assigned to the worker.
func (s *hubServer) lost(ctx context.Context, method string) func(message io.Reader, why error) {
	activity, token := false, protowire.Number(4)
	switch method {
	case protos.TaskHubSidecarService_CompleteActivityTask_FullMethodName:
		activity, token = true, 5
	case protos.TaskHubSidecarService_CompleteWorkflowTask_FullMethodName,
		protos.TaskHubSidecarService_CompleteOrchestratorTask_FullMethodName:
	default:
		return nil
	}
	return func(message io.Reader, why error) {
		a, err := readLost(io.LimitReader(message, maxLost*s.limit), token)
		if err != nil {
			return // the worker has gone
		}
		text := why.Error()
		if e, ok := errors.AsType[*api.Error](why); ok {
			text = e.Message
		} else if st, ok := status.FromError(why); ok {
			text = st.Message()
		}
		if activity {
			s.workflows.LoseResult(ctx, &protos.ActivityResponse{InstanceId: a.id, TaskId: a.task,
				CompletionToken: a.token}, text)
		} else {
			s.workflows.LoseTurn(ctx, &protos.WorkflowResponse{InstanceId: a.id, CompletionToken: a.token}, text)
		}
	}
}

// lostAnswer identifies the work item to which an answer belongs. Empty fields are unknown.
type lostAnswer struct {
	id    string
	task  int32
	token string
}

// readLost reads which work item an encoded answer belongs to, and skips the payload. token is the field number of the
// completion token. If the message ends early, readLost returns what it has read, and no error.
func readLost(message io.Reader, token protowire.Number) (a lostAnswer, err error) {
	from := bufio.NewReaderSize(message, firstPiece)
	for err == nil {
		var tag, n uint64
		if tag, err = binary.ReadUvarint(from); err != nil {
			break
		}
		num, typ := protowire.DecodeTag(tag)
		switch typ {
		case protowire.VarintType:
			if n, err = binary.ReadUvarint(from); err == nil && num == 2 {
				a.task = int32(n) //nolint:gosec // bits of a number of the protocol
			}
		case protowire.Fixed32Type:
			_, err = from.Discard(4)
		case protowire.Fixed64Type:
			_, err = from.Discard(8)
		case protowire.BytesType:
			if n, err = binary.ReadUvarint(from); err != nil {
				break
			}
			if num != 1 && num != token || n > firstPiece {
				_, err = io.CopyN(io.Discard, from, int64(min(n, math.MaxInt64))) //nolint:gosec // bounded
				break
			}
			value := make([]byte, n)
			if _, err = io.ReadFull(from, value); err != nil {
				break
			}
			if num == 1 {
				a.id = string(value)
			} else {
				a.token = string(value)
			}
		default:
			return a, nil // this is no valid message
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return a, err
}

// GetWorkItems sends work to a worker until the worker leaves or the server closes. If a worker does not receive an
// item within the stall timeout, the node aborts the call of this worker, so that other workers get the work.
func (s *hubServer) GetWorkItems(in *protos.GetWorkItemsRequest,
	out protos.TaskHubSidecarService_GetWorkItemsServer) error {
	ctx, cancel := s.bound(out.Context())
	defer cancel()
	stream, err := s.workflows.Work(ctx, in.GetCapabilities())
	if err != nil {
		return refusal(err, codes.Unknown, codes.InvalidArgument)
	}
	defer stream.Close()
	if err := out.SendHeader(nil); err != nil { // releases the memory of the request before there is work
		return err
	}
	cut := func() {}
	if a := arrivalOf(out.Context()); a != nil {
		cut = a.cancel
	}
	for {
		item, err := stream.Next(ctx)
		if err != nil {
			if s.life.Err() != nil || out.Context().Err() != nil {
				return status.Error(codes.Canceled, "the stream of work has ended")
			}
			return errClosing()
		}
		if err := sendItem(out, item, s.stall, cut); err != nil {
			return err
		}
	}
}

// sendItem sends an item. It aborts the call if the worker does not receive the item within the stall timeout.
func sendItem(out protos.TaskHubSidecarService_GetWorkItemsServer, item *protos.WorkItem, stall time.Duration,
	cut func()) error {
	var stalled atomic.Bool
	timer := time.AfterFunc(stall, func() {
		stalled.Store(true)
		cut()
	})
	defer timer.Stop()
	err := out.Send(item)
	if stalled.Load() {
		return status.Error(codes.Canceled, "the worker has taken no work for "+stall.String())
	}
	return err
}

// hubPrefix returns the beginning of the full names of the methods of TaskHubSidecarService.
func hubPrefix() string { return "/" + protos.TaskHubSidecarService_ServiceDesc.ServiceName + "/" }

// isHub reports whether a method is one of TaskHubSidecarService.
func isHub(method string) bool { return strings.HasPrefix(method, hubPrefix()) }
