package grpc

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/internal/admission"
)

func TestReminderData_IsBytes(t *testing.T) {
	for stored, want := range map[string]string{`"YWJj"`: "abc", `"not base64"`: `"not base64"`, `{"a": 1}`: `{"a": 1}`,
		"null": "null"} {
		data, err := reminderData([]byte(stored))
		var got wrapperspb.BytesValue
		if err != nil || data.UnmarshalTo(&got) != nil || string(got.GetValue()) != want {
			t.Errorf("%s is %v, %v", stored, data, err)
		}
	}
	if data, err := reminderData(nil); data != nil || err != nil {
		t.Errorf("no data: %v, %v", data, err)
	}
}

func TestTurnRequest_AnyBytesOfACallerCanBeSent(t *testing.T) {
	request, err := turnRequest(&actors.Turn{Call: &actors.Call{Actor: api.Actor{Type: "Counter", ID: "a"},
		Method: "add/%ff", Header: http.Header{"X-Name": {"caf\xe9"}}}})
	if err != nil {
		t.Fatal(err)
	}
	m := request("1")
	if _, err := proto.Marshal(m); err != nil {
		t.Error(err)
	}
	in := m.GetInvokeRequest()
	if in.GetMethod() != "add/\uFFFD" || in.GetMetadata()["X-Name"] != "caf\uFFFD" {
		t.Errorf("%v", in)
	}
}

// reminderPages is a store with several pages of reminders. The field each is the number of reminders of a page; 0 =
// one.
type reminderPages struct {
	size, each, pages int
	read              int // pages
}

func (p *reminderPages) list(_ context.Context, a api.Actor, after string) ([]actors.Reminder, string, error) {
	n, _ := strconv.Atoi(after)
	p.read++
	next := ""
	if n+1 < p.pages {
		next = strconv.Itoa(n + 1)
	}
	page := []actors.Reminder{{Actor: a, Name: strconv.Itoa(n), Data: make([]byte, p.size)}}
	return slices.Repeat(page, max(p.each, 1)), next, nil
}

func TestListReminders_BoundedByMemory(t *testing.T) {
	s := &actorMethods{core: &core{answers: admission.New(admission.Options{Bytes: 8 << 20, LargePatience: 1,
		LargeTarget: 1, Penalty: 1})}}
	others := s.answers.Share()
	if !others.TryAdd(2 << 20) {
		t.Fatal("no room")
	}
	call := &arrival{Context: t.Context()}
	p := &reminderPages{size: 1 << 20, pages: 30}
	if list, err := s.listReminders(call, api.Actor{Type: "T"}, p.list); err == nil ||
		api.AsError(err).Details.Reason != api.ReasonOverloaded || p.read > 4 {
		t.Errorf("without memory: %d reminders after %d pages, %v", len(list), p.read, err)
	}
	call.answer.Release()
	others.Release()
	p = &reminderPages{size: 1 << 20, pages: 3}
	list, err := s.listReminders(call, api.Actor{Type: "T"}, p.list)
	if err != nil || len(list) != 3 || p.read != 3 || list[2].GetName() != "2" || !call.answer.Held() {
		t.Errorf("with memory: %d reminders after %d pages, %v", len(list), p.read, err)
	}
	call.answer.Release()
}

func TestListReminders_RefusesTooMany(t *testing.T) {
	s := &actorMethods{core: &core{}}
	for name, c := range map[string]struct {
		id, remedy string
		store      reminderPages
		most       int // maximum of pages that are read
	}{
		"of a type":   {"", "give an actor id", reminderPages{size: 1 << 20, pages: 5000}, 32},
		"of an actor": {"a", "GetActorReminder", reminderPages{size: 1 << 20, pages: 5000}, 32},
		"small":       {"", "give an actor id", reminderPages{each: 1000, pages: 5000}, 132},
	} {
		list, err := s.listReminders(t.Context(), api.Actor{Type: "T", ID: c.id}, c.store.list)
		if err == nil || api.AsError(err).Kind != api.Malformed || !strings.Contains(err.Error(), c.remedy) ||
			c.store.read > c.most {
			t.Errorf("%s: %d reminders after %d pages, %v", name, len(list), c.store.read, err)
		}
	}
}
