package grpc

import (
	"net/http"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
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
