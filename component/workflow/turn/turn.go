package turn

import (
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Bounds of an answer.
const (
	// MaxActions is the largest number of actions in an answer.
	MaxActions = 10_000
	// MaxID bounds the ids of instances and executions. MaxName bounds the names of workflows, activities, events and
	// timers. Both are in bytes.
	MaxID   = 1024
	MaxName = 1024
	// MaxPatches bounds the patches in an answer, and MaxTags the tags of an instance.
	MaxPatches = 1000
	MaxTags    = 100
	// MaxCustom bounds the custom status, in bytes. Every log entry that changes an instance also writes its custom
	// status.
	MaxCustom = 256 << 10
	// MaxCarried bounds the events that a continue-as-new carries over.
	MaxCarried = 50_000
	// MaxReasons bounds the total size of the reasons in the messages that terminate an instance's children, in bytes.
	// If the reasons are larger, they are omitted, so that the messages fit into one log entry.
	MaxReasons = 8 << 20
	// MaxGaps bounds the number of gaps between the ids of a generation's actions. Workers use consecutive ids.
	MaxGaps = 50_000
)

// State is an instance before a turn.
type State struct {
	ID        string
	App       string // the application that owns the instance
	Namespace string // of App; "" = the one in the name of App, or the default one
	History   *History
	// New has the new events of the turn that the worker got: the result of Begin.
	New []*protos.HistoryEvent
}

// Outcome is what a turn changes. An engine stores all of it at once, or nothing.
type Outcome struct {
	// Append has the events to add to the history: State.New, and the events of the actions. It is empty if Replace is
	// true.
	Append []*protos.HistoryEvent
	// Replace reports a continue-as-new: the history is removed, the generation grows by one, and the timers of the
	// previous generation are dropped.
	Replace bool
	// Inbox has events for the inbox of the same instance. If Replace is true, they come before the events that are
	// left in the inbox.
	Inbox []*protos.HistoryEvent
	// Consumed reports whether the inbox events of State.New are removed from the inbox. It is false if
	// Stalled is set.
	Consumed bool

	Tasks    []Task
	Timers   []Timer
	Dropped  []int32 // ids of timers that must not fire: they are timeouts for an external event that has come
	Messages []Message

	Status protos.OrchestrationStatus
	// Completed is the event ExecutionCompleted if the instance has ended in this turn, and otherwise nil. The timers
	// of an ended instance are dropped. Its activities still run, but their results are ignored.
	Completed *protos.ExecutionCompletedEvent
	// Custom is the custom status of the answer; nil = the answer has none.
	Custom *wrapperspb.StringValue
	// Stalled is set if the worker cannot run the turn. Append is then empty, or the event ExecutionStalled. The turn
	// runs again when a worker connects or an event arrives.
	Stalled *protos.ExecutionStalledEvent
}

// Task is an activity to run.
type Task struct {
	ID    int32
	App   string               // the application whose workers run the activity
	Event *protos.HistoryEvent // TaskScheduled
}

// Timer is an event that is put into the inbox of the instance at the time FireAt.
type Timer struct {
	ID     int32
	FireAt time.Time
	Event  *protos.HistoryEvent // TimerFired; the engine sets its timestamp when the timer fires
}

// Message is an event for the inbox of another instance, or of the same one.
type Message struct {
	// Key is the same whenever the message is sent again, and different for other messages of any instance.
	Key string
	// App is the application that owns the target.
	App, Instance string
	// Execution is the id of the execution for which the message is; "" = any. A target with another execution id
	// ignores the message. ExecutionTerminated may also name the execution with which the target was created.
	Execution string
	Event     *protos.HistoryEvent
}

// Begin returns the new events of a turn: WorkflowStarted, and then events of the inbox. It omits duplicates, and
// results for which the instance does not wait. If WorkflowStarted is the only event, the turn has nothing to do, and
// the inbox can be cleared.
func Begin(h *History, inbox []*protos.HistoryEvent, now time.Time) []*protos.HistoryEvent {
	events := make([]*protos.HistoryEvent, 1, len(inbox)+1)
	events[0] = event(-1, now, &protos.HistoryEvent{EventType: &protos.HistoryEvent_WorkflowStarted{
		WorkflowStarted: &protos.WorkflowStartedEvent{}}})
	started, completed := h.start != nil, h.completed != nil
	var closed map[int32]struct{}
	var seen map[raised]struct{}
	for _, e := range inbox {
		switch v := e.GetEventType().(type) {
		case *protos.HistoryEvent_ExecutionStarted:
			if started {
				continue
			}
			started = true
		case *protos.HistoryEvent_ExecutionCompleted:
			if completed {
				continue
			}
			completed = true
		case *protos.HistoryEvent_EventRaised:
			id := raised{v.EventRaised.GetName(), when(e)}
			if _, ok := h.raised[id]; ok {
				continue
			}
			if _, ok := seen[id]; ok {
				continue
			}
			if seen == nil {
				seen = map[raised]struct{}{}
			}
			seen[id] = struct{}{}
		case nil:
			continue
		default:
			id, k, ok := resolves(e)
			if !ok {
				break
			}
			if p, open := h.open[id]; !open || p.kind != k {
				continue
			}
			if _, again := closed[id]; again {
				continue
			}
			if closed == nil {
				closed = map[int32]struct{}{}
			}
			closed[id] = struct{}{}
		}
		events = append(events, e)
	}
	return events
}

// event sets the id and the timestamp of e, and returns e.
func event(id int32, now time.Time, e *protos.HistoryEvent) *protos.HistoryEvent {
	e.EventId, e.Timestamp = id, timestamppb.New(now)
	return e
}
