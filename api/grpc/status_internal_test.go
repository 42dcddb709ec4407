package grpc

import (
	"strings"
	"testing"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/api"
)

// The message of a failed actor call contains the answer of the application, which may have any length and any bytes.
func TestStatusOf_MessageIsBounded(t *testing.T) {
	for text, want := range map[string]string{
		"short":                               "short",
		"a\xff":                               "a\uFFFD",
		strings.Repeat("x", maxMessage):       strings.Repeat("x", maxMessage),
		"y" + strings.Repeat("\u00e9", 2<<20): "y" + strings.Repeat("\u00e9", maxMessage/2-2) + "...",
	} {
		e := &api.Error{Kind: api.Failed, Code: api.CodeActorInvoke, Message: text,
			Details: api.Details{Store: "a", Resource: "b"}}
		st := status.Convert(statusOf("/m", e))
		if st.Message() != want {
			t.Errorf("%.10q: the message has %d bytes, want %d", text, len(st.Message()), len(want))
		}
		if raw, err := proto.Marshal(st.Proto()); err != nil || len(raw) > 3*maxMessage {
			t.Errorf("%.10q: the status has %d bytes, %v", text, len(raw), err)
		}
		if e.Message != text {
			t.Errorf("%.10q: the error has changed", text)
		}
	}
}
