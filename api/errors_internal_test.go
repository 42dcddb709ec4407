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
