package cli

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
)

// TestOperation_WithoutAnEnd checks that an operation on a topic is not reported as one that was not made if the node
// stops during it.
func TestOperation_WithoutAnEnd(t *testing.T) {
	rests := map[string]string{"at a line": "", "in a line": `{"progress"`}
	const hint = "what to do about the error"
	for _, code := range []fault.Code{fault.Unavailable, fault.Timeout, fault.NotLeader, fault.Overloaded,
		fault.ReadOnly, fault.FormatBlocked, fault.Conflict, fault.Corrupt} {
		text := fault.Marshal(&fault.Error{Code: code, Op: "test", Msg: "the rest is not done", Hint: hint})
		rests[string(code)] = `{"error":` + string(text) + "}"
	}
	for what, rest := range rests {
		w, _, _ := watchOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"progress":{"done":512}}`+rest)
		}))
		m := Main{Shell: &command.Shell{Stderr: io.Discard}}
		sum, err := m.operation(t.Context(), w.client.admin, admin.TopicDeletePath, 1, "records deleted")
		if !fault.Is(err, fault.Indeterminate) || sum.Done != 512 {
			t.Errorf("%s: %+v, %v", what, sum, err)
		}
		if strings.HasPrefix(rest, `{"error"`) && fault.HintOf(err) != hint {
			t.Errorf("%s: the hint is %q", what, fault.HintOf(err))
		}
	}
}
