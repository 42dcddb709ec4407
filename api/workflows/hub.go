package workflows

import (
	"context"
	"slices"
	"strconv"
	"sync"

	"github.com/dapr/durabletask-go/api/protos"
	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
)

// The methods in this file serve TaskHubSidecarService, which SDKs call. Errors of the engine get the code
// CodeWorkflow and are wrapped.

// hub converts an error of the engine for a method of TaskHubSidecarService. It calls failed with the code
// CodeWorkflow.
func hub(sentence string, err error) error { return failed(api.CodeWorkflow, sentence, err) }

// StartInstance creates an instance and returns its id. If the request has no start time, StartInstance waits until the
// first turn of the instance has ended.
func (s *Service) StartInstance(ctx context.Context, r *protos.CreateInstanceRequest) (id string, err error) {
	if r.GetInstanceId() == "" {
		r.InstanceId = uuid.NewString()
	}
	owner, err := s.to(r.GetInstanceId(), r.GetRouter())
	if err != nil {
		return "", err
	}
	if r.GetName() == "" {
		return "", bad(api.CodeWorkflowName, "workflow name is not configured")
	}
	if err := checkName("the name of the workflow", r.GetName()); err != nil {
		return "", err
	}
	switch {
	case len(r.GetExecutionId().GetValue()) > MaxID:
		return "", api.Exceeded("the execution ID is too long, in bytes", len(r.GetExecutionId().GetValue()), MaxID)
	case len(r.GetVersion().GetValue()) > MaxName:
		return "", api.Exceeded("the version is too long, in bytes", len(r.GetVersion().GetValue()), MaxName)
	case len(r.GetTags()) > MaxTags:
		return "", api.Exceeded("too many tags", len(r.GetTags()), MaxTags)
	case r.ScheduledStartTimestamp != nil && r.GetScheduledStartTimestamp().CheckValid() != nil:
		return "", api.MalformedRequest("the scheduled start time is not valid")
	}
	r.Router = nil // the router names only the application itself
	id = r.GetInstanceId()
	scheduled := r.ScheduledStartTimestamp != nil
	if err := s.o.Engine.Start(ctx, owner, r); err != nil {
		return "", hub("", err)
	}
	if !scheduled {
		s.awaitStart(ctx, owner, id)
	}
	return id, nil
}

// GetInstance returns the state of an instance. The result is nil if there is none.
func (s *Service) GetInstance(ctx context.Context, r *protos.GetInstanceRequest) (*protos.WorkflowState, error) {
	owner, err := s.to(r.GetInstanceId(), r.GetRouter())
	if err != nil {
		return nil, err
	}
	state, err := s.o.Engine.State(ctx, owner, r.GetInstanceId(), r.GetGetInputsAndOutputs())
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	return state, hub("", err)
}

// WaitFor waits until the status of an instance satisfies a condition, and returns the state of the instance.
func (s *Service) WaitFor(ctx context.Context, r *protos.GetInstanceRequest,
	until workflow.Until) (*protos.WorkflowState, error) {
	owner, err := s.to(r.GetInstanceId(), r.GetRouter())
	if err != nil {
		return nil, err
	}
	state, err := s.o.Engine.Wait(ctx, owner, r.GetInstanceId(), until, r.GetGetInputsAndOutputs())
	return state, hub("", err)
}

// RaiseEvent stores an external event for an instance.
func (s *Service) RaiseEvent(ctx context.Context, r *protos.RaiseEventRequest) error {
	owner, err := s.to(r.GetInstanceId(), r.GetRouter())
	if err != nil {
		return err
	}
	if r.GetName() == "" {
		return bad(api.CodeWorkflowEventName, "missing workflow event name")
	}
	if err := checkName("the name of the event", r.GetName()); err != nil {
		return err
	}
	return hub("", s.o.Engine.Raise(ctx, owner, r))
}

// TerminateInstance ends an instance and waits until it has ended.
func (s *Service) TerminateInstance(ctx context.Context, r *protos.TerminateRequest) error {
	return s.change(ctx, r.GetInstanceId(), r.GetRouter(), workflow.Completed, func(owner string) error {
		return s.o.Engine.Terminate(ctx, owner, r)
	})
}

// SuspendInstance suspends an instance and waits until it is suspended or has ended.
func (s *Service) SuspendInstance(ctx context.Context, r *protos.SuspendRequest) error {
	return s.change(ctx, r.GetInstanceId(), r.GetRouter(), workflow.Suspended, func(owner string) error {
		return s.o.Engine.Suspend(ctx, owner, r)
	})
}

// ResumeInstance resumes an instance and waits until it runs or has ended.
func (s *Service) ResumeInstance(ctx context.Context, r *protos.ResumeRequest) error {
	return s.change(ctx, r.GetInstanceId(), r.GetRouter(), workflow.Resumed, func(owner string) error {
		return s.o.Engine.Resume(ctx, owner, r)
	})
}

// change calls a function that stores a change of an instance, and waits until the change has taken effect. If the wait
// fails, the outcome is indeterminate, because the change may still take effect.
func (s *Service) change(ctx context.Context, id string, router *protos.TaskRouter, until workflow.Until,
	store func(owner string) error) error {
	owner, err := s.to(id, router)
	if err != nil {
		return err
	}
	if err := store(owner); err != nil {
		return hub("", err)
	}
	if _, err = s.o.Engine.Wait(ctx, owner, id, until, false); err != nil {
		return hub("", &fault.Error{Code: fault.Indeterminate, Op: "workflows.change", Err: err,
			Msg: "the request is stored, but its effect was not seen"})
	}
	return nil
}

// purgeFailed begins the messages about a purge.
const purgeFailed = "failed to purge workflow state: "

// PurgeInstances removes one instance, or the instances that match a filter. removed is the number of removed
// instances. If complete is false, some matching instances are left.
func (s *Service) PurgeInstances(ctx context.Context, r *protos.PurgeInstancesRequest) (removed int, complete bool,
	err error) {
	if f := r.GetPurgeInstanceFilter(); f != nil {
		owner, err := s.routed(r.GetRouter())
		if err != nil {
			return 0, false, err
		}
		filter := workflow.Filter{}
		for _, st := range f.GetRuntimeStatus() {
			if !slices.Contains(filter.Statuses, st) {
				filter.Statuses = append(filter.Statuses, st)
			}
		}
		if f.CreatedTimeFrom != nil {
			filter.CreatedFrom = f.GetCreatedTimeFrom().AsTime()
		}
		if f.CreatedTimeTo != nil {
			filter.CreatedTo = f.GetCreatedTimeTo().AsTime()
		}
		removed, complete, err = s.o.Engine.PurgeMatching(ctx, owner, filter, r.GetRecursive())
		return removed, complete, hub(purgeFailed, err)
	}
	owner, err := s.to(r.GetInstanceId(), r.GetRouter())
	if err != nil {
		return 0, false, err
	}
	removed, err = s.o.Engine.Purge(ctx, owner, r.GetInstanceId(), r.GetRecursive(), r.GetForce())
	return removed, err == nil, hub(purgeFailed, err)
}

// ListInstanceIDs returns a page of the ids of the application's instances, in the order of their creation. It also
// returns the token of the next page, which is empty if there is none.
func (s *Service) ListInstanceIDs(ctx context.Context, r *protos.ListInstanceIDsRequest) (ids []string, next string,
	err error) {
	limit := MaxPage
	if r.PageSize != nil && r.GetPageSize() > 0 {
		limit = int(min(r.GetPageSize(), MaxPage))
	}
	if len(r.GetContinuationToken()) > 4*MaxID {
		return nil, "", api.MalformedRequest("the continuation token is not one of this service")
	}
	page, next, err := s.o.Engine.List(ctx, s.owner, workflow.Filter{}, r.GetContinuationToken(), limit)
	if err != nil {
		return nil, "", hub("", err)
	}
	ids = make([]string, len(page))
	for i := range page {
		ids[i] = page[i].ID
	}
	return ids, next, nil
}

// eventsPerPage is how many events of a history are read at a time.
const eventsPerPage = 1000

// lockHistory waits until no other call of this application holds a whole history in memory. The caller must call done
// when it no longer needs its own history.
func (s *Service) lockHistory(ctx context.Context) (done func(), err error) {
	select {
	case s.whole <- struct{}{}:
		return func() { <-s.whole }, nil
	case <-ctx.Done():
		return nil, hub("another call reads a history: ", fault.Wrap(ctx.Err(), "workflows.History", "waiting"))
	}
}

// GetInstanceHistory returns the committed events of an instance. Calls of the same application run one after another.
//
// It first reads with a small size limit. If the history is larger, it reads again with a larger limit, up to
// MaxHistory. Before each read, it calls room with the limit in bytes, so that the caller can reserve memory. Each
// reservation replaces the previous one.
func (s *Service) GetInstanceHistory(ctx context.Context, id string,
	room func(bytes int64) error) (*protos.GetInstanceHistoryResponse, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	done, err := s.lockHistory(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	for _, limit := range []int{128 << 10, 4 << 20, MaxHistory} {
		if err := room(int64(limit)); err != nil {
			return nil, err
		}
		events, fits, err := s.history(ctx, id, limit)
		if err != nil {
			return nil, err
		}
		if fits {
			out := &protos.GetInstanceHistoryResponse{}
			out.ProtoReflect().SetUnknown(events)
			return out, nil
		}
	}
	return nil, &api.Error{Kind: api.Malformed, Code: api.CodeMalformed,
		Details: api.Details{Reason: api.ReasonTooLarge},
		Message: "the history of workflow instance '" + api.Shorten(id) + "' has more than " +
			strconv.Itoa(MaxHistory>>20) + " MiB, the limit of one answer"}
}

// history returns the events of an instance, encoded for GetInstanceHistoryResponse. If they are larger than the limit
// in bytes, fits is false. history decodes one page of events at a time, because decoded events need several times as
// much memory.
func (s *Service) history(ctx context.Context, id string, limit int) (encoded []byte, fits bool, err error) {
	const events = 1 // the number of the field
	for first, more := 0, true; more; {
		var page []*protos.HistoryEvent
		page, more, err = s.o.Engine.History(ctx, s.owner, id, first, eventsPerPage)
		if fault.Is(err, fault.NotFound) {
			return nil, false, &api.Error{Kind: api.NotFound, Code: api.CodeInstanceNotFound, Cause: err,
				Message: "workflow instance '" + api.Shorten(id) + "' not found"}
		}
		if err != nil {
			return nil, false, hub("", err)
		}
		for _, e := range page {
			size := proto.Size(e)
			if len(encoded)+size > limit {
				return nil, false, nil
			}
			encoded = protowire.AppendVarint(protowire.AppendTag(encoded, events, protowire.BytesType), uint64(size))
			if encoded, err = (proto.MarshalOptions{}).MarshalAppend(encoded, e); err != nil {
				return nil, false, fault.Wrap(err, "workflows.History", "encoding the answer")
			}
		}
		first += len(page)
		more = more && len(page) > 0
	}
	return encoded, true, nil
}

// Rerun creates an instance from the history of another one, and waits for its first turn.
func (s *Service) Rerun(ctx context.Context, r *protos.RerunWorkflowFromEventRequest) (id string, err error) {
	owner, err := s.to(r.GetSourceInstanceID(), r.GetRouter())
	if err != nil {
		return "", err
	}
	if r.NewInstanceID != nil {
		if err := checkID(r.GetNewInstanceID()); err != nil {
			return "", err
		}
	}
	done, err := s.lockHistory(ctx)
	if err != nil {
		return "", err
	}
	id, err = s.o.Engine.Rerun(ctx, owner, r)
	done()
	if err != nil {
		return "", hub("", err)
	}
	s.awaitStart(ctx, owner, id)
	return id, nil
}

// awaitStart waits until the first turn of a new instance has ended. It ignores a failure of the wait. The client must
// not get an error, because it would then start the instance again.
func (s *Service) awaitStart(ctx context.Context, owner, id string) {
	_, _ = s.o.Engine.Wait(ctx, owner, id, workflow.Started, false)
}

// Work opens a stream of work for a worker.
func (s *Service) Work(ctx context.Context, capabilities []protos.WorkerCapability) (workflow.Stream, error) {
	if !s.admit() {
		return nil, &api.Error{Kind: api.Unavailable, Code: api.CodeOverloaded, Details: api.Details{
			Reason: api.ReasonOverloaded}, Message: "too many streams of work are open, the limit is 256"}
	}
	w := workflow.Worker{}
	if s.o.Worker != nil {
		w = s.o.Worker()
	}
	w.CachesHistory = slices.Contains(capabilities, protos.WorkerCapability_WORKER_CAPABILITY_STATEFUL_HISTORY)
	stream, err := s.o.Engine.Work(ctx, s.owner, w)
	if err != nil {
		s.leave()
		return nil, hub("", err)
	}
	return &counted{Stream: stream, leave: sync.OnceFunc(s.leave)}, nil
}

func (s *Service) admit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams >= MaxStreams {
		return false
	}
	s.streams++
	return true
}

func (s *Service) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams--
}

// counted is a stream that counts against MaxStreams until it is closed.
type counted struct {
	workflow.Stream
	leave func()
}

// Close implements workflow.Stream.
func (c *counted) Close() {
	c.Stream.Close()
	c.leave()
}

// CompleteTurn stores the answer of a worker to a turn.
func (s *Service) CompleteTurn(ctx context.Context, r *protos.WorkflowResponse) error {
	if err := checkID(r.GetInstanceId()); err != nil {
		return err
	}
	return hub("", s.o.Engine.CompleteTurn(ctx, s.owner, r))
}

// CompleteActivity stores the result of an activity.
func (s *Service) CompleteActivity(ctx context.Context, r *protos.ActivityResponse) error {
	if err := checkID(r.GetInstanceId()); err != nil {
		return err
	}
	return hub("", s.o.Engine.CompleteActivity(ctx, s.owner, r))
}

// LoseResult makes an activity fail with the given message. It is for a result that was not received because it exceeds
// a limit. The activity is not retried, because the next result would also be too large.
//
// The parameter lost has what is known of the worker's answer. It should include the completion token, so that the
// engine can ignore an answer to an earlier attempt.
func (s *Service) LoseResult(ctx context.Context, lost *protos.ActivityResponse, message string) {
	lost.FailureDetails = &protos.TaskFailureDetails{ErrorType: "ResultTooLarge", IsNonRetriable: true,
		ErrorMessage: "the result of the activity was refused: " + message}
	err := s.CompleteActivity(ctx, lost)
	s.warn("the result of an activity exceeds a limit, so the activity fails", lost.GetInstanceId(), message, err)
}

// LoseTurn makes the engine hand out a turn again after a pause. It is for an answer that was not received because it
// exceeds a limit. The parameter lost has what is known of this answer. LoseTurn replaces the actions in lost with an
// unknown action, so that the engine refuses the answer.
func (s *Service) LoseTurn(ctx context.Context, lost *protos.WorkflowResponse, message string) {
	lost.Actions = []*protos.WorkflowAction{{}}
	err := s.CompleteTurn(ctx, lost)
	if err != nil && fault.CodeOf(api.AsError(err).Cause) == fault.Invalid {
		err = nil // the expected refusal
	}
	s.warn("the answer of a worker exceeds a limit, so the turn is handed out again", lost.GetInstanceId(), message,
		err)
}

func (s *Service) warn(what, id, message string, err error) {
	if s.o.Logger == nil {
		return
	}
	s.o.Logger.Warn(what, "app", s.owner, "instance", api.Shorten(id), "reason", message, "error", err,
		"hint", "keep large data in a state store and pass its key, or raise --max-body-size")
}
