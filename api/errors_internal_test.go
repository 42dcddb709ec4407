package api

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
)

// The reason shows clients whether to retry, and the message names the server and the format.
func TestFailed_FormatBlocked(t *testing.T) {
	err := &fault.Error{Code: fault.FormatBlocked, Op: "test",
		Msg: "format 2 of log entries is needed, and server c understands up to 1", Hint: "upgrade that server"}
	for _, o := range []operation{opGet, opSave, opTransact} {
		e := o.failed(err, "orders", "k", "")
		if e.Kind != Unavailable || e.Details.Reason != ReasonFormatBlocked ||
			!strings.Contains(e.Message, "server c understands up to 1") {
			t.Errorf("%d: %+v", o, e)
		}
	}
}

// A retry would execute the request again, so the message has no hint to retry.
func TestAnswerOverloaded_HasNoHintToRetry(t *testing.T) {
	err := &fault.Error{Code: fault.Overloaded, Op: "test", Msg: "the memory is in use", Hint: "retry after a moment"}
	want := "the request was executed, but its answer was dropped: the memory is in use"
	if e := AsError(AnswerOverloaded(err)); e.Message != want || e.Kind != Indeterminate {
		t.Errorf("kind %d: %q, want %q", e.Kind, e.Message, want)
	}
	if err.Hint == "" {
		t.Error("the reason was changed")
	}
}
