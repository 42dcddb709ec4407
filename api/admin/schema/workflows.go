package schema

import "time"

// WorkflowRef names an instance of a workflow.
type WorkflowRef struct {
	App       string `json:"app"`
	Namespace string `json:"namespace,omitempty"` // needed if applications of several namespaces have the id
	ID        string `json:"id"`
}

// WorkflowSelection selects workflow instances. An empty field selects all instances. A Limit below 1 counts as 1.
type WorkflowSelection struct {
	App       string
	Namespace string
	Name      string    // name of the workflow
	Prefix    string    // prefix of the instance id
	Statuses  []string  // such as RUNNING
	Since     time.Time // the instance was created at this time or later
	Before    time.Time // the instance was created before this time
	Limit     int
	After     string // the token of the previous page
}

// WorkflowStatus describes a workflow instance, in a list and as a part of WorkflowDetail.
type WorkflowStatus struct {
	WorkflowRef
	Name    string    `json:"name"`
	Status  string    `json:"status"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
	Parent  string    `json:"parent,omitempty"` // the id of the parent
}

// WorkflowPage is one page of a list of instances. The list is sorted by application and time of creation.
type WorkflowPage struct {
	Instances []WorkflowStatus `json:"instances"`
	Next      string           `json:"next,omitempty"` // token of the next page; empty = there is none
	Note      string           `json:"note,omitempty"` // why the list may be empty
}

// WorkflowFailure says why an instance or a step has failed.
type WorkflowFailure struct {
	Type    string `json:"type,omitempty"`
	Message string `json:"message,omitempty"`
	Stack   string `json:"stack,omitempty"` // only with payloads
}

// WorkflowDetail is everything about an instance except its history.
type WorkflowDetail struct {
	WorkflowStatus
	Version   string            `json:"version,omitempty"`
	Execution string            `json:"execution"` // changes when the workflow continues as new
	Scheduled time.Time         `json:"scheduled,omitzero"`
	Started   time.Time         `json:"started,omitzero"` // begin of the first turn
	Completed time.Time         `json:"completed,omitzero"`
	ParentApp string            `json:"parentApp,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"`
	Failure   *WorkflowFailure  `json:"failure,omitempty"`
	Workers   int               `json:"workers"` // connected streams of work of the application, on all nodes
	Events    int               `json:"events"`  // number of history events that Steps is made from
	MoreSteps bool              `json:"moreSteps,omitempty"`
	Turns     int               `json:"turns"`
	Steps     []WorkflowStep    `json:"steps"`

	// The payloads. nil = there is none, or the request did not ask for payloads.
	Input  *string `json:"input,omitempty"`
	Output *string `json:"output,omitempty"`
	Custom *string `json:"customStatus,omitempty"`
}

// WorkflowStep is one step in the history of an instance, such as an activity, a timer, a wait or a child.
type WorkflowStep struct {
	Kind    string           `json:"kind"` // see the constants StepActivity and following
	EventID int32            `json:"eventId"`
	Name    string           `json:"name,omitempty"`
	Begin   time.Time        `json:"begin"`
	End     time.Time        `json:"end,omitzero"` // zero = the step goes on
	Due     time.Time        `json:"due,omitzero"` // when a timer fires or a wait times out
	Outcome string           `json:"outcome,omitempty"`
	Attempt int              `json:"attempt,omitempty"` // attempt of an activity that is retried; 1 = the first
	App     string           `json:"app,omitempty"`     // application whose workers run the step; empty = the same
	Child   string           `json:"child,omitempty"`   // instance id
	Failure *WorkflowFailure `json:"failure,omitempty"`
}

// The kinds of steps.
const (
	StepActivity  = "activity"
	StepTimer     = "timer"
	StepRetry     = "retry"     // the pause before an attempt
	StepWait      = "wait"      // the wait for an external event
	StepEvent     = "event"     // an external event that nothing waited for when it came
	StepChild     = "child"     // another instance, for which the workflow waits
	StepDetached  = "detached"  // another instance, for which the workflow does not wait
	StepSent      = "sent"      // an event for another instance
	StepSuspended = "suspended" // the time for which the instance was suspended
	StepStalled   = "stalled"
)

// The outcomes of steps. An empty outcome means that the step has not ended.
const (
	StepCompleted = "completed"
	StepFailed    = "failed"
	StepFired     = "fired"
	StepReceived  = "received"
	StepTimedOut  = "timed out"
	StepCanceled  = "canceled" // the instance has ended first
	StepDone      = "done"
)

// WorkflowEvent is one event in the history of an instance.
type WorkflowEvent struct {
	Position int              `json:"position"` // position in the history, from 0
	ID       int32            `json:"id"`       // -1 = an event of the engine
	Time     time.Time        `json:"time"`
	Type     string           `json:"type"`
	Name     string           `json:"name,omitempty"`
	Ref      *int32           `json:"ref,omitempty"`    // id of the event that this event answers
	Detail   string           `json:"detail,omitempty"` // a few words
	Failure  *WorkflowFailure `json:"failure,omitempty"`
	// Payload is the input, output or data. nil = there is none, or the request did not ask for payloads.
	Payload *string `json:"payload,omitempty"`
	// Cut is the full size of the payload in bytes, if Payload has only its beginning.
	Cut int `json:"cut,omitempty"`
}

// WorkflowHistory is a part of the history of an instance.
type WorkflowHistory struct {
	Events []WorkflowEvent `json:"events"`
	More   bool            `json:"more,omitempty"`
}

// WorkflowStart starts an instance.
type WorkflowStart struct {
	WorkflowRef           // ID is empty for a new random one
	Name        string    `json:"name"`
	Input       *string   `json:"input,omitempty"` // JSON; nil = none
	At          time.Time `json:"at,omitzero"`     // zero = at once
}

// WorkflowChange changes an instance.
type WorkflowChange struct {
	WorkflowRef
	Action       string  `json:"action"`                 // see the constants WorkflowRaise and following
	Event        string  `json:"event,omitempty"`        // WorkflowRaise: name of the event
	Data         *string `json:"data,omitempty"`         // JSON: of the event, or the result of WorkflowTerminate
	Early        bool    `json:"early,omitempty"`        // WorkflowRaise: even if no wait expects the event
	Reason       string  `json:"reason,omitempty"`       // WorkflowPause and WorkflowResume: text for the history
	KeepChildren bool    `json:"keepChildren,omitempty"` // WorkflowTerminate: do not end the children
}

// The actions of a WorkflowChange.
const (
	WorkflowRaise     = "raise"
	WorkflowPause     = "pause"
	WorkflowResume    = "resume"
	WorkflowTerminate = "terminate"
)

// WorkflowChanged is an instance after a change.
type WorkflowChanged struct {
	WorkflowRef
	Status string `json:"status"`
	Note   string `json:"note,omitempty"` // what the operator should know
}

// WorkflowPurge is a request to remove one instance with its children. If the ID is empty, it is a request to
// remove the ended instances that match Name, Prefix, Statuses and Before.
type WorkflowPurge struct {
	WorkflowRef           // ID is empty for a selection
	Name        string    `json:"name,omitempty"`
	Prefix      string    `json:"prefix,omitempty"`
	Statuses    []string  `json:"statuses,omitempty"`
	Before      time.Time `json:"before,omitzero"` // created before this time
	Force       bool      `json:"force,omitempty"` // remove also an instance that runs
}

// WorkflowsPurged is the result of a WorkflowPurge.
type WorkflowsPurged struct {
	Removed int  `json:"removed"`        // children included
	More    bool `json:"more,omitempty"` // some are left: repeat the request
}

// WorkflowRerun is a request to start a new instance that repeats an ended instance. Event is the event of the history
// at which the new instance begins.
type WorkflowRerun struct {
	WorkflowRef
	Event uint32  `json:"event"`           // id of the event that runs again
	NewID string  `json:"newId,omitempty"` // empty = a new random one
	Input *string `json:"input,omitempty"` // JSON; nil = that of the event
}
