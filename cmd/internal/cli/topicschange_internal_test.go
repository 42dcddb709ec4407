package cli

import (
	"io"
	"net/http"
	"testing"

	"github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
)

// TestOperation_WithoutAnEnd checks that an operation on a topic is not reported as one that was not made if the node
// stops during it.
func TestOperation_WithoutAnEnd(t *testing.T) {
	lost := fault.Marshal(fault.New(fault.Unavailable, "test", "the group has no leader"))
	for what, rest := range map[string]string{"at a line": "", "in a line": `{"progress"`,
		"with an error": `{"error":` + string(lost) + "}"} {
		w, _, _ := watchOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"progress":{"done":512}}`+rest)
		}))
		m := Main{Shell: &command.Shell{Stderr: io.Discard}}
		sum, err := m.operation(t.Context(), w.client.admin, admin.TopicDeletePath, 1, "records deleted")
		if !fault.Is(err, fault.Indeterminate) || sum.Done != 512 {
			t.Errorf("%s: %+v, %v", what, sum, err)
		}
	}
}
