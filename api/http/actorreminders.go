package http

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/jobproto"
	"github.com/quorate/quorate/internal/fault"
)

// reminderBody is the body of a request that sets a reminder or a timer.
type reminderBody struct {
	DueTime   string          `json:"dueTime"`
	Period    string          `json:"period"`
	TTL       string          `json:"ttl"`
	Data      json.RawMessage `json:"data"`
	Callback  string          `json:"callback"`
	Overwrite *bool           `json:"overwrite"`
	Policy    json.RawMessage `json:"failure_policy"`
	// OtherPolicy is the same field as Policy, in the spelling of some SDKs.
	OtherPolicy json.RawMessage `json:"failurePolicy"`
}

// reminder decodes a request that sets a reminder or a timer. overwrite says whether the request may replace an
// existing reminder with the same name.
func (a *actorRoutes) reminder(p *reply, r *http.Request) (out actors.Reminder, overwrite bool, err error) {
	if out.Actor, out.Name, err = actorPath(r.URL); err != nil {
		return out, false, err
	}
	if err := a.state.CheckActors(); err != nil {
		return out, false, err
	}
	body, err := a.body(p, r)
	if err != nil {
		return out, false, err
	}
	defer a.release(body)
	if err := a.reserve(p, r, jobElements(body.data)*jobMemory); err != nil {
		return out, false, err
	}
	var in reminderBody
	if err := json.Unmarshal(body.data, &in); err != nil {
		return out, false, api.MalformedRequest("the body is no JSON object with dueTime, period, ttl and data")
	}
	policy := in.Policy
	if len(policy) == 0 {
		policy = in.OtherPolicy
	}
	if out.Policy, err = jobproto.ParsePolicy(policy); err != nil {
		return out, false, api.MalformedRequest(fault.Text(err))
	}
	out.DueTime, out.Period, out.TTL, out.Callback = in.DueTime, in.Period, in.TTL, in.Callback
	out.Data = bytes.Clone(in.Data)
	return out, in.Overwrite == nil || *in.Overwrite, nil
}

// setReminder serves POST and PUT /v1.0/actors/{type}/{id}/reminders/{name}.
func (a *actorRoutes) setReminder(p *reply, r *http.Request) error {
	reminder, overwrite, err := a.reminder(p, r)
	if err != nil {
		return err
	}
	ctx := a.deadline(p, r)
	defer ctx.end()
	if err := a.actors.SetReminder(ctx, &reminder, overwrite); err != nil {
		return err
	}
	p.empty()
	return nil
}

// getReminder serves GET /v1.0/actors/{type}/{id}/reminders/{name}.
func (a *actorRoutes) getReminder(p *reply, r *http.Request) error {
	actor, name, err := actorPath(r.URL)
	if err != nil {
		return err
	}
	ctx := a.deadline(p, r)
	defer ctx.end()
	reminder, err := a.actors.Reminder(ctx, actor, name)
	if err != nil {
		return err
	}
	text, err := json.Marshal(struct {
		ActorID   string          `json:"actorID"`
		ActorType string          `json:"actorType"`
		DueTime   string          `json:"dueTime"`
		Period    string          `json:"period"`
		TTL       string          `json:"ttl,omitempty"`
		Data      json.RawMessage `json:"data"`
	}{actor.ID, actor.Type, reminder.DueTime, reminder.Period, reminder.TTL, reminder.Data})
	if err != nil {
		return fault.Wrap(err, "http.getReminder", "encoding the answer")
	}
	return p.send(http.StatusOK, valueJSON, text)
}

// deleteReminder serves DELETE /v1.0/actors/{type}/{id}/reminders/{name}.
func (a *actorRoutes) deleteReminder(p *reply, r *http.Request) error {
	actor, name, err := actorPath(r.URL)
	if err != nil {
		return err
	}
	ctx := a.deadline(p, r)
	defer ctx.end()
	if err := a.actors.RemoveReminder(ctx, actor, name); err != nil {
		return err
	}
	p.empty()
	return nil
}

// setTimer serves POST and PUT /v1.0/actors/{type}/{id}/timers/{name}.
func (a *actorRoutes) setTimer(p *reply, r *http.Request) error {
	timer, _, err := a.reminder(p, r)
	if err != nil {
		return err
	}
	ctx := a.deadline(p, r)
	defer ctx.end()
	if err := a.actors.SetTimer(ctx, &timer); err != nil {
		return err
	}
	p.empty()
	return nil
}

// deleteTimer serves DELETE /v1.0/actors/{type}/{id}/timers/{name}.
func (a *actorRoutes) deleteTimer(p *reply, r *http.Request) error {
	actor, name, err := actorPath(r.URL)
	if err != nil {
		return err
	}
	ctx := a.deadline(p, r)
	defer ctx.end()
	if err := a.actors.RemoveTimer(ctx, actor, name); err != nil {
		return err
	}
	p.empty()
	return nil
}
