package grpc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strconv"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/jobproto"
	"github.com/quorate/quorate/internal/fault"
)

// reminderMessage has the methods that the requests for reminders and timers have in common.
type reminderMessage interface {
	GetActorType() string
	GetActorId() string
	GetName() string
	GetDueTime() string
	GetPeriod() string
	GetTtl() string
	GetData() []byte
}

// reminderOf converts a request to an actors.Reminder. A reminder stores its data as JSON. Therefore reminderOf encodes
// the bytes of the request as a base64 string.
func reminderOf(in reminderMessage) (actors.Reminder, error) {
	out := actors.Reminder{Actor: api.Actor{Type: in.GetActorType(), ID: in.GetActorId()}, Name: in.GetName(),
		DueTime: in.GetDueTime(), Period: in.GetPeriod(), TTL: in.GetTtl()}
	if len(in.GetData()) == 0 {
		return out, nil
	}
	var err error
	out.Data, err = json.Marshal(in.GetData())
	return out, fault.Wrap(err, "grpc.reminderOf", "the data cannot be encoded")
}

// reminderData converts the stored data of a reminder to a BytesValue, or returns nil if there is no data. As in
// Dapr, the BytesValue has the decoded bytes if data is a base64 string. Otherwise it has the JSON text of data.
func reminderData(data json.RawMessage) (*anypb.Any, error) {
	if len(data) == 0 {
		return nil, nil
	}
	raw := []byte(data)
	var text string
	if data[0] == '"' && json.Unmarshal(data, &text) == nil {
		if decoded, err := base64.StdEncoding.DecodeString(text); err == nil {
			raw = decoded
		}
	}
	out, err := anypb.New(wrapperspb.Bytes(raw))
	return out, fault.Wrap(err, "grpc.reminderData", "the data cannot be encoded")
}

// RegisterActorReminder stores a reminder.
func (s *actorMethods) RegisterActorReminder(ctx context.Context,
	in *runtimev1.RegisterActorReminderRequest) (*emptypb.Empty, error) {
	if err := s.state.CheckActors(); err != nil {
		return nil, err
	}
	r, err := reminderOf(in)
	if err != nil {
		return nil, err
	}
	r.Policy = jobproto.PolicyOf(in.GetFailurePolicy())
	return &emptypb.Empty{}, s.actors.SetReminder(ctx, &r, in.Overwrite == nil || in.GetOverwrite())
}

// UnregisterActorReminder removes a reminder.
func (s *actorMethods) UnregisterActorReminder(ctx context.Context,
	in *runtimev1.UnregisterActorReminderRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.actors.RemoveReminder(ctx, api.Actor{Type: in.GetActorType(), ID: in.GetActorId()},
		in.GetName())
}

// GetActorReminder returns a reminder.
func (s *actorMethods) GetActorReminder(ctx context.Context,
	in *runtimev1.GetActorReminderRequest) (*runtimev1.GetActorReminderResponse, error) {
	r, err := s.actors.Reminder(ctx, api.Actor{Type: in.GetActorType(), ID: in.GetActorId()}, in.GetName())
	if err != nil {
		return nil, err
	}
	data, err := reminderData(r.Data)
	return &runtimev1.GetActorReminderResponse{ActorType: r.Actor.Type, ActorId: r.Actor.ID, DueTime: given(r.DueTime),
		Period: given(r.Period), Ttl: given(r.TTL), Data: data}, err
}

// given returns a pointer to text, or nil if text is empty.
func given(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// ListActorReminders returns the reminders of an actor, or of all actors of a type. It returns an error if they need
// more than largeList bytes.
func (s *actorMethods) ListActorReminders(ctx context.Context,
	in *runtimev1.ListActorRemindersRequest) (*runtimev1.ListActorRemindersResponse, error) {
	list, err := s.listReminders(ctx, api.Actor{Type: in.GetActorType(), ID: in.GetActorId()}, s.actors.Reminders)
	if err != nil {
		return nil, err
	}
	return &runtimev1.ListActorRemindersResponse{Reminders: list}, nil
}

// reminderMemory is the number of bytes that are reserved for each listed reminder, in addition to its strings and
// its data.
const reminderMemory = 256

// listReminders reads all reminders, page by page. It reserves memory for each page before it reads the next one.
func (s *actorMethods) listReminders(ctx context.Context, a api.Actor,
	read func(ctx context.Context, a api.Actor, after string) (page []actors.Reminder, next string, err error),
) (out []*runtimev1.NamedActorReminder, err error) {
	total := int64(0)
	for after, more := "", true; more; more = after != "" {
		var page []actors.Reminder
		if page, after, err = read(ctx, a, after); err != nil {
			return nil, err
		}
		size := int64(0)
		for i := range page {
			r := &page[i]
			size += reminderMemory + int64(len(r.Actor.Type)+len(r.Actor.ID)+len(r.Name)+len(r.DueTime)+len(r.Period)+
				len(r.TTL)+len(r.Data))
		}
		if total += size; total > largeList {
			return nil, remindersTooLarge(a)
		}
		if err := s.extend(ctx, size); err != nil {
			return nil, err
		}
		for i := range page {
			r := &page[i]
			data, err := reminderData(r.Data)
			if err != nil {
				return nil, err
			}
			out = append(out, &runtimev1.NamedActorReminder{Name: r.Name, Reminder: &runtimev1.ActorReminder{
				ActorType: r.Actor.Type, ActorId: r.Actor.ID, DueTime: given(r.DueTime), Period: given(r.Period),
				Ttl: given(r.TTL), Data: data}})
		}
	}
	return out, nil
}

// remindersTooLarge returns the error for reminders that need more than largeList bytes.
func remindersTooLarge(a api.Actor) error {
	remedy := "give an actor id to list the reminders of one actor"
	if a.ID != "" {
		remedy = "read them by name with GetActorReminder"
	}
	return &api.Error{Kind: api.Malformed, Code: api.CodeReminderGet,
		Details: api.Details{Reason: api.ReasonTooLarge,
			Metadata: api.Attributes("actorType", a.Type, "actorID", a.ID)},
		Message: "the reminders need more than " + strconv.Itoa(largeList) + " bytes (" + remedy + ")"}
}

// UnregisterActorRemindersByType removes the reminders of all actors of a type. If the request also has an actor id, it
// removes only the reminders of this actor.
func (s *actorMethods) UnregisterActorRemindersByType(ctx context.Context,
	in *runtimev1.UnregisterActorRemindersByTypeRequest) (*runtimev1.UnregisterActorRemindersByTypeResponse, error) {
	err := s.actors.RemoveReminders(ctx, api.Actor{Type: in.GetActorType(), ID: in.GetActorId()})
	return &runtimev1.UnregisterActorRemindersByTypeResponse{}, err
}

// RegisterActorTimer starts a timer.
func (s *actorMethods) RegisterActorTimer(ctx context.Context,
	in *runtimev1.RegisterActorTimerRequest) (*emptypb.Empty, error) {
	if err := s.state.CheckActors(); err != nil {
		return nil, err
	}
	t, err := reminderOf(in)
	if err != nil {
		return nil, err
	}
	t.Callback = in.GetCallback()
	return &emptypb.Empty{}, s.actors.SetTimer(ctx, &t)
}

// UnregisterActorTimer ends a timer.
func (s *actorMethods) UnregisterActorTimer(ctx context.Context,
	in *runtimev1.UnregisterActorTimerRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.actors.RemoveTimer(ctx, api.Actor{Type: in.GetActorType(), ID: in.GetActorId()},
		in.GetName())
}
