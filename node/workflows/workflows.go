// Package workflows connects the workflow services of a node with the workflow engine, which opens later than the
// services. It also implements the admin API about workflows. It owns no goroutines.
package workflows

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
)

// Engine is a workflow.Engine that forwards all calls to the engine that Open sets. Until Open, every call fails with
// fault.Unavailable. It is safe for concurrent use.
type Engine struct {
	open atomic.Pointer[workflow.Engine]
}

var _ workflow.Engine = (*Engine)(nil)

// Open sets the engine to which e forwards all calls. The parameter by is that engine.
func (e *Engine) Open(by workflow.Engine) { e.open.Store(&by) }

func (e *Engine) engine() (workflow.Engine, error) {
	if by := e.open.Load(); by != nil {
		return *by, nil
	}
	return nil, &fault.Error{Code: fault.Unavailable, Op: "node.workflows",
		Msg: "the node is starting and serves no workflows yet", Hint: "wait for /v1.0/healthz"}
}

// Start implements workflow.Engine.
func (e *Engine) Start(ctx context.Context, app string, r *protos.CreateInstanceRequest) error {
	by, err := e.engine()
	if err != nil {
		return err
	}
	return by.Start(ctx, app, r)
}

// State implements workflow.Engine.
func (e *Engine) State(ctx context.Context, app, id string, payloads bool) (*protos.WorkflowState, error) {
	by, err := e.engine()
	if err != nil {
		return nil, err
	}
	return by.State(ctx, app, id, payloads)
}

// Wait implements workflow.Engine.
func (e *Engine) Wait(ctx context.Context, app, id string, until workflow.Until,
	payloads bool) (*protos.WorkflowState, error) {
	by, err := e.engine()
	if err != nil {
		return nil, err
	}
	return by.Wait(ctx, app, id, until, payloads)
}

// Raise implements workflow.Engine.
func (e *Engine) Raise(ctx context.Context, app string, r *protos.RaiseEventRequest) error {
	by, err := e.engine()
	if err != nil {
		return err
	}
	return by.Raise(ctx, app, r)
}

// Terminate implements workflow.Engine.
func (e *Engine) Terminate(ctx context.Context, app string, r *protos.TerminateRequest) error {
	by, err := e.engine()
	if err != nil {
		return err
	}
	return by.Terminate(ctx, app, r)
}

// Suspend implements workflow.Engine.
func (e *Engine) Suspend(ctx context.Context, app string, r *protos.SuspendRequest) error {
	by, err := e.engine()
	if err != nil {
		return err
	}
	return by.Suspend(ctx, app, r)
}

// Resume implements workflow.Engine.
func (e *Engine) Resume(ctx context.Context, app string, r *protos.ResumeRequest) error {
	by, err := e.engine()
	if err != nil {
		return err
	}
	return by.Resume(ctx, app, r)
}

// Purge implements workflow.Engine.
func (e *Engine) Purge(ctx context.Context, app, id string, recursive, force bool) (int, error) {
	by, err := e.engine()
	if err != nil {
		return 0, err
	}
	return by.Purge(ctx, app, id, recursive, force)
}

// PurgeMatching implements workflow.Engine.
func (e *Engine) PurgeMatching(ctx context.Context, app string, f workflow.Filter, recursive bool) (int, bool, error) {
	by, err := e.engine()
	if err != nil {
		return 0, false, err
	}
	return by.PurgeMatching(ctx, app, f, recursive)
}

// List implements workflow.Engine.
func (e *Engine) List(ctx context.Context, app string, f workflow.Filter, after string,
	limit int) ([]workflow.Listed, string, error) {
	by, err := e.engine()
	if err != nil {
		return nil, "", err
	}
	return by.List(ctx, app, f, after, limit)
}

// Applications implements workflow.Engine.
func (e *Engine) Applications(ctx context.Context) ([]workflow.Application, error) {
	by, err := e.engine()
	if err != nil {
		return nil, err
	}
	return by.Applications(ctx)
}

// History implements workflow.Engine.
func (e *Engine) History(ctx context.Context, app, id string, first, limit int) ([]*protos.HistoryEvent, bool, error) {
	by, err := e.engine()
	if err != nil {
		return nil, false, err
	}
	return by.History(ctx, app, id, first, limit)
}

// Rerun implements workflow.Engine.
func (e *Engine) Rerun(ctx context.Context, app string, r *protos.RerunWorkflowFromEventRequest) (string, error) {
	by, err := e.engine()
	if err != nil {
		return "", err
	}
	return by.Rerun(ctx, app, r)
}

// Work implements workflow.Engine.
func (e *Engine) Work(ctx context.Context, app string, w workflow.Worker) (workflow.Stream, error) {
	by, err := e.engine()
	if err != nil {
		return nil, err
	}
	return by.Work(ctx, app, w)
}

// CompleteTurn implements workflow.Engine.
func (e *Engine) CompleteTurn(ctx context.Context, app string, r *protos.WorkflowResponse) error {
	by, err := e.engine()
	if err != nil {
		return err
	}
	return by.CompleteTurn(ctx, app, r)
}

// CompleteActivity implements workflow.Engine.
func (e *Engine) CompleteActivity(ctx context.Context, app string, r *protos.ActivityResponse) error {
	by, err := e.engine()
	if err != nil {
		return err
	}
	return by.CompleteActivity(ctx, app, r)
}

// Workers implements workflow.Engine.
func (e *Engine) Workers(app string) int {
	by, err := e.engine()
	if err != nil {
		return 0
	}
	return by.Workers(app)
}

// WorkerOf returns the settings for the workflow workers of an application. c is the workflow section of the
// Configuration. If c is nil, the settings are zero.
func WorkerOf(c *component.WorkflowConfig) workflow.Worker {
	if c == nil {
		return workflow.Worker{}
	}
	kept := func(status *time.Duration) time.Duration {
		if d := c.Retention.For(status); d != nil {
			return max(*d, time.Nanosecond) // 0 means something else in a workflow.Retention
		}
		return 0
	}
	r := &c.Retention
	return workflow.Worker{MaxTurns: c.MaxTurns, MaxActivities: c.MaxActivities, Retention: workflow.Retention{
		Completed: kept(r.Completed), Failed: kept(r.Failed), Terminated: kept(r.Terminated)}}
}
