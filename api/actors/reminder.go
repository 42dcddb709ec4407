package actors

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Headers of callbacks. Repeated deliveries of a tick have the same tick id.
const (
	headerTick    = "Quorate-Reminder-Tick"
	headerAttempt = "Quorate-Reminder-Attempt"
	headerCancel  = "X-Daprremindercancel" // header of an answer: "true" ends the reminder or the timer
)

// Tick is the JSON body of a tick that the application receives. The field callback is absent for reminders. The field
// data is absent if the reminder or timer was registered without data. As in Dapr, dueTime and period are empty for
// reminders.
type Tick struct {
	Data     json.RawMessage `json:"data,omitempty"`
	Callback *string         `json:"callback,omitempty"`
	DueTime  string          `json:"dueTime"`
	Period   string          `json:"period"`
}

// callback returns the call that delivers a tick to the application. kind is CallbackReminder or CallbackTimer.
func (r *Reminder) callback(kind string) (*Call, error) {
	body := Tick{Data: r.Data}
	if kind == CallbackTimer {
		body.DueTime, body.Period, body.Callback = r.DueTime, r.Period, &r.Callback
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fault.Wrap(err, "actors.Call", "the data cannot be encoded")
	}
	return &Call{Actor: r.Actor, Callback: kind, Method: r.Name, Verb: http.MethodPut, Body: text,
		Header: http.Header{"Content-Type": {"application/json"}, "User-Agent": {"quorate"}}}, nil
}

// canceled reports whether an answer says that there should be no more ticks.
func canceled(a *Answer) bool { return a.Header.Get(headerCancel) == "true" }

// Remind delivers one tick of a reminder to its actor, on any node of the cluster. The application also receives the id
// of the tick and the number of the delivery attempt.
//
// If err is nil, the application has answered. status is the HTTP status of the answer, and cancel is true if the
// application wants no more ticks. If err is fault.NotFound, no node hosts the actor type. Other errors have the same
// meaning as those of Runtime.Take.
//
// The timeout in the Resiliency policy of the actor type applies to the delivery, but the retries do not. The failure
// policy of the reminder decides whether there are further attempts.
func (r *Runtime) Remind(ctx context.Context, namespace string, rem *Reminder, tick string,
	attempt uint64) (status int, cancel bool, err error) {
	c, err := rem.callback(CallbackReminder)
	if err != nil {
		return 0, false, err
	}
	c.namespace = namespace
	c.Header[headerTick] = []string{tick}
	c.Header[headerAttempt] = []string{strconv.FormatUint(attempt, 10)}
	if p := r.options.Policy(rem.Actor.Type); p != nil && p.Timeout > 0 {
		bounded, stop := context.WithTimeout(ctx, p.Timeout)
		defer stop()
		ctx = bounded
	}
	answer, err := r.find(ctx, c)
	return answer.Status, canceled(&answer), err
}

// Reminding returns how many reminder ticks this node is delivering to an application at the moment. The result has one
// number for each node that receives ticks, by node id.
func (r *Runtime) Reminding(app api.App) map[string]int {
	out := map[string]int{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, n := range r.ticks {
		if key.app == app {
			out[key.node] = n
		}
	}
	return out
}

// delivering counts a reminder tick as being delivered to a host, until end is called.
func (r *Runtime) delivering(key hostKey) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ticks[key]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.ticks[key]--; r.ticks[key] == 0 {
			delete(r.ticks, key)
		}
	}
}

// checkReminder returns an error if the name, the data or the policy of a reminder or a timer is not valid.
func checkReminder(r *Reminder) error {
	if err := checkReminderName(r.Actor, r.Name); err != nil {
		return err
	}
	switch {
	case len(r.Data) > api.MaxJobData:
		return api.MalformedRequest("data: has " + strconv.Itoa(len(r.Data)) + " bytes, the limit is " +
			strconv.Itoa(api.MaxJobData))
	case r.Policy != nil && r.Policy.Interval < 0:
		return api.MalformedRequest("failurePolicy: the interval is negative")
	}
	return nil
}

func checkReminderName(a api.Actor, name string) error {
	if err := state.ValidateActor(a.Type, a.ID); err != nil {
		return api.MalformedRequest(fault.Text(err))
	}
	if problem := api.NameProblem(name); problem != "" {
		return api.MalformedRequest("the name " + problem)
	}
	return nil
}

// reminderFailed returns the public error of a request about reminders or timers. The message begins with the given
// sentence.
func reminderFailed(code, sentence string, a api.Actor, err error) *api.Error {
	kind, reason := verdict(err)
	if kind == api.Denied {
		kind = api.Failed
	}
	if fault.Is(err, fault.Invalid) {
		reason = code
	}
	return &api.Error{Kind: kind, Code: code, Message: sentence + ": " + fault.Text(err), Cause: err,
		Details: api.Details{Reason: reason, Metadata: api.Attributes("actorType", a.Type, "actorID", a.ID)}}
}

// checkHosts returns an error if the application does not host the actor type. An application can use reminders only
// for its own actors. While the application starts, checkHosts waits up to Options.HostWait for its actor types.
func (s *Service) checkHosts(ctx context.Context, kind string) error {
	if h := s.runtime.started(ctx, s.app.ID); h != nil && h.hostsType(kind) {
		return nil
	}
	return &api.Error{Kind: api.Denied, Code: api.CodeReminderNonHosted,
		Details: api.Details{Reason: api.CodeReminderNonHosted},
		Message: "this application does not host actors of type " + api.Shorten(kind) +
			" (an application uses reminders of its own actors only)"}
}

// SetReminder stores a reminder. When it returns nil, the reminder is in the replicated log. If overwrite is false and
// the actor has a reminder with that name, the error is of kind api.Exists. All errors are *api.Error.
func (s *Service) SetReminder(ctx context.Context, r *Reminder, overwrite bool) error {
	if err := checkReminder(r); err != nil {
		return err
	}
	if err := s.checkHosts(ctx, r.Actor.Type); err != nil {
		return err
	}
	err := s.runtime.options.Reminders.Put(ctx, s.app.ID, r, overwrite)
	switch {
	case err == nil:
		return nil
	case fault.Is(err, fault.Conflict):
		return &api.Error{Kind: api.Exists, Code: api.CodeReminderExists, Cause: err,
			Details: api.Details{Reason: api.CodeReminderExists},
			Message: "the actor has a reminder " + api.Shorten(r.Name) + " already (set overwrite to replace it)"}
	}
	return reminderFailed(api.CodeReminderCreate, "error creating actor reminder "+api.Shorten(r.Name), r.Actor, err)
}

// Reminder returns a reminder of an actor. If the actor has no reminder with this name, the error is of kind
// api.NotFound. All errors are *api.Error.
func (s *Service) Reminder(ctx context.Context, a api.Actor, name string) (Reminder, error) {
	if err := checkReminderName(a, name); err != nil {
		return Reminder{}, err
	}
	if err := s.checkHosts(ctx, a.Type); err != nil {
		return Reminder{}, err
	}
	r, found, err := s.runtime.options.Reminders.Get(ctx, s.app.ID, a, name)
	switch {
	case err != nil:
		return r, reminderFailed(api.CodeReminderGet, "error getting actor reminder "+api.Shorten(name), a, err)
	case !found:
		return r, &api.Error{Kind: api.NotFound, Code: api.CodeReminderNotFound,
			Details: api.Details{Reason: api.ReasonNotFound},
			Message: "the actor has no reminder " + api.Shorten(name)}
	}
	return r, nil
}

// Reminders returns one page of the reminders of an actor, or of all actors of the type if a.ID is empty. For the first
// page, pass an empty token. For a further page, pass the token next of the previous page. For the last page, next is
// empty. All errors are *api.Error.
func (s *Service) Reminders(ctx context.Context, a api.Actor, after string) (page []Reminder, next string, err error) {
	if err := checkFamily(a); err != nil {
		return nil, "", err
	}
	if err := s.checkHosts(ctx, a.Type); err != nil {
		return nil, "", err
	}
	page, next, err = s.runtime.options.Reminders.List(ctx, s.app.ID, a, after)
	if err != nil {
		return nil, "", reminderFailed(api.CodeReminderGet, "error listing actor reminders", a, err)
	}
	return page, next, nil
}

// checkFamily checks the type and the ID of a. An empty ID is valid, because it stands for all actors of the type.
func checkFamily(a api.Actor) error {
	if a.ID == "" {
		a.ID = "any"
	}
	if err := state.ValidateActor(a.Type, a.ID); err != nil {
		return api.MalformedRequest(fault.Text(err))
	}
	return nil
}

// RemoveReminder removes the reminder with the given name. It succeeds if there is no such reminder. After it has
// returned nil, no further tick begins, but a tick that is being delivered may still arrive. All errors are *api.Error.
func (s *Service) RemoveReminder(ctx context.Context, a api.Actor, name string) error {
	if err := checkReminderName(a, name); err != nil {
		return err
	}
	if err := s.checkHosts(ctx, a.Type); err != nil {
		return err
	}
	if err := s.runtime.options.Reminders.Remove(ctx, s.app.ID, a, name); err != nil {
		return reminderFailed(api.CodeReminderDelete, "error deleting actor reminder "+api.Shorten(name), a, err)
	}
	return nil
}

// RemoveReminders removes all reminders of the actor a, or of all actors of its type if a.ID is empty. After an
// error, some of them may have been removed. All errors are *api.Error.
func (s *Service) RemoveReminders(ctx context.Context, a api.Actor) error {
	if err := checkFamily(a); err != nil {
		return err
	}
	if err := s.checkHosts(ctx, a.Type); err != nil {
		return err
	}
	if err := s.runtime.options.Reminders.RemoveAll(ctx, s.app.ID, a); err != nil {
		return reminderFailed(api.CodeReminderDelete, "error deleting actor reminders", a, err)
	}
	return nil
}
