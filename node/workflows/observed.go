package workflows

import (
	"context"
	"sync"
	"time"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
)

// Observer is notified of what an application does with workflows. Implementations must be safe for concurrent use.
type Observer interface {
	// WorkflowOperation is called after an operation. operation is its name in Dapr's metrics.
	WorkflowOperation(operation string, ok bool, took time.Duration)
	// ActivityExecuted is called after a worker has executed an activity and its result is stored.
	ActivityExecuted(name string, ok bool, took time.Duration)
}

// The names of operations in Observer.
const (
	opCreate = "create_workflow"
	opGet    = "get_workflow"
	opAdd    = "add_event"
	opPurge  = "purge_workflow"
)

// maxObserved is the maximum number of running activities that an observed engine remembers. When it is reached, the
// engine forgets an arbitrary activity for each new one. The observer is not notified of forgotten activities.
const maxObserved = 10_000

// Observed returns an engine that forwards all calls to e. The returned engine reports workflow operations and executed
// activities to the observer. If observer is nil, Observed returns e.
func Observed(e workflow.Engine, observer Observer) workflow.Engine {
	if observer == nil {
		return e
	}
	return &observed{Engine: e, by: observer, began: map[string]execution{}}
}

type observed struct {
	workflow.Engine
	by Observer

	mu    sync.Mutex
	began map[string]execution // by completion token
}

// execution is an activity that a worker executes.
type execution struct {
	name string
	at   time.Time
	of   *observedStream
}

func (o *observed) operation(name string, begun time.Time, err error) {
	o.by.WorkflowOperation(name, err == nil, time.Since(begun))
}

// Start implements workflow.Engine.
func (o *observed) Start(ctx context.Context, app string, r *protos.CreateInstanceRequest) error {
	begun := time.Now()
	err := o.Engine.Start(ctx, app, r)
	o.operation(opCreate, begun, err)
	return err
}

// State implements workflow.Engine. As in Dapr, a request for an instance that does not exist counts as a success.
func (o *observed) State(ctx context.Context, app, id string, payloads bool) (*protos.WorkflowState, error) {
	begun := time.Now()
	s, err := o.Engine.State(ctx, app, id, payloads)
	if fault.Is(err, fault.NotFound) {
		o.operation(opGet, begun, nil)
	} else {
		o.operation(opGet, begun, err)
	}
	return s, err
}

// Raise implements workflow.Engine.
func (o *observed) Raise(ctx context.Context, app string, r *protos.RaiseEventRequest) error {
	begun := time.Now()
	err := o.Engine.Raise(ctx, app, r)
	o.operation(opAdd, begun, err)
	return err
}

// Terminate implements workflow.Engine.
func (o *observed) Terminate(ctx context.Context, app string, r *protos.TerminateRequest) error {
	begun := time.Now()
	err := o.Engine.Terminate(ctx, app, r)
	o.operation(opAdd, begun, err)
	return err
}

// Suspend implements workflow.Engine.
func (o *observed) Suspend(ctx context.Context, app string, r *protos.SuspendRequest) error {
	begun := time.Now()
	err := o.Engine.Suspend(ctx, app, r)
	o.operation(opAdd, begun, err)
	return err
}

// Resume implements workflow.Engine.
func (o *observed) Resume(ctx context.Context, app string, r *protos.ResumeRequest) error {
	begun := time.Now()
	err := o.Engine.Resume(ctx, app, r)
	o.operation(opAdd, begun, err)
	return err
}

// Purge implements workflow.Engine.
func (o *observed) Purge(ctx context.Context, app, id string, recursive, force bool) (int, error) {
	begun := time.Now()
	removed, err := o.Engine.Purge(ctx, app, id, recursive, force)
	o.operation(opPurge, begun, err)
	return removed, err
}

// Work implements workflow.Engine.
func (o *observed) Work(ctx context.Context, app string, w workflow.Worker) (workflow.Stream, error) {
	s, err := o.Engine.Work(ctx, app, w)
	if err != nil {
		return nil, err
	}
	return &observedStream{Stream: s, by: o, tokens: map[string]struct{}{}}, nil
}

// CompleteActivity implements workflow.Engine.
func (o *observed) CompleteActivity(ctx context.Context, app string, r *protos.ActivityResponse) error {
	token, ok := r.GetCompletionToken(), r.GetFailureDetails() == nil // the engine owns r afterwards
	err := o.Engine.CompleteActivity(ctx, app, r)
	if err != nil {
		return err
	}
	o.mu.Lock()
	one, known := o.began[token]
	if known {
		delete(o.began, token)
		delete(one.of.tokens, token)
	}
	o.mu.Unlock()
	if known {
		o.by.ActivityExecuted(one.name, ok, time.Since(one.at))
	}
	return nil
}

// forgetOne forgets an arbitrary activity. This limits the size of the map o.began, because some activities are never
// completed under their token. The caller holds o.mu.
func (o *observed) forgetOne() {
	for token, one := range o.began {
		delete(o.began, token)
		delete(one.of.tokens, token)
		return
	}
}

// observedStream is a stream of work that reports its activities to the observer. Only one goroutine may call Next.
// Another goroutine may call Close.
type observedStream struct {
	workflow.Stream
	by     *observed
	tokens map[string]struct{} // guarded by by.mu
}

// Next implements workflow.Stream.
func (s *observedStream) Next(ctx context.Context) (*protos.WorkItem, error) {
	item, err := s.Stream.Next(ctx)
	if a := item.GetActivityRequest(); err == nil && a != nil {
		s.by.mu.Lock()
		if len(s.by.began) >= maxObserved {
			s.by.forgetOne()
		}
		s.by.began[item.GetCompletionToken()] = execution{a.GetName(), time.Now(), s}
		s.tokens[item.GetCompletionToken()] = struct{}{}
		s.by.mu.Unlock()
	}
	return item, err
}

// Close implements workflow.Stream. It also forgets the uncompleted activities of this stream, because the engine sends
// these activities again on other streams.
func (s *observedStream) Close() {
	s.Stream.Close()
	s.by.mu.Lock()
	defer s.by.mu.Unlock()
	for token := range s.tokens {
		delete(s.by.began, token)
	}
	clear(s.tokens)
}
