package grpc

import (
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"
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
