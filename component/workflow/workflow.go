// Package workflow defines the contract between the workflow APIs and an engine. An engine stores instances of
// workflows and gives their work to the workers of applications. The package owns only the contract, and has no
// goroutines.
//
// All engines must follow the rules in package turn, so that they run a workflow in the same way.
//
// The messages are those of the Durable Task protocol, which the workers of Dapr's SDKs use.
package workflow

import (
	"context"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
)

// Engine stores the instances of workflows and hands out their work. Every method has a parameter for the id of the
// application that owns the instance. Instances of two applications may have the same id. All methods are safe for
// concurrent use and return when ctx ends. Errors are *fault.Error with these codes:
//
//   - NotFound: the instance does not exist, see NoInstance
//   - Conflict: an instance with this id exists, see AlreadyRuns, AlreadyExists and ChildRuns
//   - Invalid: the request is wrong, or the state of the instance does not allow it, see Stalled and NotTerminal
//   - TooLarge, Overloaded, Unavailable, Timeout: the request was certainly not executed
//   - Indeterminate: the request may have been executed
//
// A caller must not change a message that it has passed to an engine or received from an engine.
type Engine interface {
	// Start stores a new instance, and returns before the instance has run. With a start time in the future, the
	// instance runs at that time. If an instance with the id exists, the rules of turn.Reuse decide.
	Start(ctx context.Context, app string, r *protos.CreateInstanceRequest) error
	// State returns the state of an instance. Input, output, custom status and failure are set only if payloads is
	// true. The read is linearizable.
	State(ctx context.Context, app, id string, payloads bool) (*protos.WorkflowState, error)
	// Wait returns the state of an instance as soon as its status satisfies until. It also waits for an instance that
	// does not exist yet.
	Wait(ctx context.Context, app, id string, until Until, payloads bool) (*protos.WorkflowState, error)
	// Raise stores an external event for an instance. For a terminal instance, Raise returns nil and ignores the
	// event.
	Raise(ctx context.Context, app string, r *protos.RaiseEventRequest) error
	// Terminate stores that an instance has to end, with its children if r.Recursive is true. It has no effect on a
	// terminal instance.
	Terminate(ctx context.Context, app string, r *protos.TerminateRequest) error
	// Suspend stores that an instance has to pause. It has no effect on a terminal or suspended instance.
	Suspend(ctx context.Context, app string, r *protos.SuspendRequest) error
	// Resume stores that an instance has to go on. It has no effect on an instance that is not suspended.
	Resume(ctx context.Context, app string, r *protos.ResumeRequest) error
	// Purge removes an instance, with its children if recursive is true. It returns how many instances it has removed.
	// It returns NotTerminal or Stalled if an instance is not terminal, unless force is true.
	Purge(ctx context.Context, app, id string, recursive, force bool) (removed int, err error)
	// PurgeMatching removes terminal instances that match a filter, and returns how many. If complete is false, some
	// matching instances are left. If recursive is true, instances with a running child are also left, and err is the
	// error for the first of them.
	PurgeMatching(ctx context.Context, app string, f Filter, recursive bool) (removed int, complete bool, err error)
	// List returns instances that match a filter, in the order of their creation. The parameter after is "" or the
	// token of the previous page. The result next is "" on the last page.
	List(ctx context.Context, app string, f Filter, after string, limit int) (page []Listed, next string, err error)
	// Applications returns the applications that have instances or workers, by id. After a purge, an application may
	// stay in the list without instances.
	Applications(ctx context.Context) ([]Application, error)
	// History returns at most limit committed events of an instance. first is the position of the first of them, from
	// 0. Events in the inbox are not committed. more is true if there are later events.
	History(ctx context.Context, app, id string, first, limit int) (events []*protos.HistoryEvent, more bool, err error)
	// Rerun creates an instance from the history of a terminal one, as turn.Rerun describes, and returns its id.
	Rerun(ctx context.Context, app string, r *protos.RerunWorkflowFromEventRequest) (id string, err error)

	// Work opens a stream of work for a worker of the application. Close gives back what the stream has not completed.
	Work(ctx context.Context, app string, w Worker) (Stream, error)
	// CompleteTurn stores the answer of a worker to a WorkflowRequest. If the answer breaks the rules, CompleteTurn
	// returns an error with the code Invalid, and the turn is handed out again later. An answer with the token of
	// another turn is ignored.
	CompleteTurn(ctx context.Context, app string, r *protos.WorkflowResponse) error
	// CompleteActivity stores the result of an activity. If the activity already has a result, the new one is ignored.
	CompleteActivity(ctx context.Context, app string, r *protos.ActivityResponse) error
	// Workers returns how many streams of the application are open on this node.
	Workers(app string) int
}

// Stream hands out the work of one worker.
type Stream interface {
	// Next waits for the next item. Every item has a completion token. Next returns an error with the code Unavailable
	// if the engine is closed. Only one goroutine may call Next.
	Next(ctx context.Context) (*protos.WorkItem, error)
	// Close ends the stream. Other streams get its uncompleted items at once. Close may be called twice.
	Close()
}

// Worker describes a worker that opens a stream of work.
type Worker struct {
	// CachesHistory means that the worker keeps the history of instances. An engine may then send only the events that
	// follow those that the stream has got before. CachedHistory in the item has the number of the earlier events.
	CachesHistory bool
	// MaxTurns and MaxActivities bound how many turns and activities all streams of the application on this node have
	// at a time; 0 = no bound.
	MaxTurns, MaxActivities int
	// Retention applies to the instances that the worker ends. For instances that end without a worker, the Retention
	// of the newest worker of the application applies.
	Retention Retention
}

// Retention defines how long an instance is kept after it has ended. The time depends on the status with which the
// instance has ended. 0 means that the instance is kept until it is purged.
type Retention struct{ Completed, Failed, Terminated time.Duration }

// Of returns how long an instance with the terminal status s is kept. The field Terminated is used for all statuses
// other than completed and failed.
func (r Retention) Of(s protos.OrchestrationStatus) time.Duration {
	switch s {
	case protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED:
		return r.Completed
	case protos.OrchestrationStatus_ORCHESTRATION_STATUS_FAILED:
		return r.Failed
	}
	return r.Terminated
}

// Filter selects instances. The zero value selects all.
type Filter struct {
	Prefix                 string                       // of the instance id
	Name                   string                       // of the workflow; "" = any
	Statuses               []protos.OrchestrationStatus // empty = any
	CreatedFrom, CreatedTo time.Time                    // inclusive and exclusive; zero = no bound
	WithoutChildren        bool                         // leave out instances that have a parent
}

// Matches reports whether the filter selects an instance.
func (f *Filter) Matches(l *Listed) bool {
	switch {
	case len(l.ID) < len(f.Prefix) || l.ID[:len(f.Prefix)] != f.Prefix,
		f.Name != "" && l.Name != f.Name,
		!f.CreatedFrom.IsZero() && l.Created.Before(f.CreatedFrom),
		!f.CreatedTo.IsZero() && !l.Created.Before(f.CreatedTo),
		f.WithoutChildren && l.Parent != "":
		return false
	}
	if len(f.Statuses) == 0 {
		return true
	}
	for _, s := range f.Statuses {
		if s == l.Status {
			return true
		}
	}
	return false
}

// Application is an application in a list.
type Application struct {
	ID      string
	Workers int // number of its streams of work, on all nodes
}

// Listed is an instance in a list.
type Listed struct {
	ID, Name         string
	Parent           string // instance id of the parent; "" = none
	Status           protos.OrchestrationStatus
	Created, Updated time.Time
}

// Until is a condition for the status of an instance.
type Until int

// The conditions.
const (
	Started   Until = iota // the first turn has run
	Completed              // the status is terminal
	Suspended              // suspended, or terminal
	Resumed                // running, or terminal
)

// Reached reports whether a status satisfies the condition.
func (u Until) Reached(s protos.OrchestrationStatus) bool {
	switch u {
	case Started:
		return s != protos.OrchestrationStatus_ORCHESTRATION_STATUS_PENDING
	case Suspended:
		return s == protos.OrchestrationStatus_ORCHESTRATION_STATUS_SUSPENDED || Terminal(s)
	case Resumed:
		return s == protos.OrchestrationStatus_ORCHESTRATION_STATUS_RUNNING || Terminal(s)
	default:
		return Terminal(s)
	}
}

// Terminal reports whether an instance with the status s has ended and will not run again.
func Terminal(s protos.OrchestrationStatus) bool {
	switch s {
	case protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED,
		protos.OrchestrationStatus_ORCHESTRATION_STATUS_FAILED,
		protos.OrchestrationStatus_ORCHESTRATION_STATUS_TERMINATED,
		protos.OrchestrationStatus_ORCHESTRATION_STATUS_CANCELED:
		return true
	}
	return false
}
