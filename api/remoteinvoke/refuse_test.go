package remoteinvoke_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/component"
)

// Access control refuses a call at once, although the caller pauses in the middle of the body.
func TestAccess_RefusalDoesNotWaitForTheBody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.access = map[api.App]*invoke.Access{{ID: "web"}: invoke.NewAccess(&component.AccessControl{
		DefaultAction: component.Deny}, false)}
	w.start("b", "web", app(t, describe), nil)
	a := w.start("a", "shop", "", nil)
	for name, length := range map[string]int64{"stream": -1, "known length": 1 << 20} {
		body, to := io.Pipe()
		go func() { _, _ = io.WriteString(to, "text") }()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		answer, err := a.invoke.Do(ctx, &invoke.Call{Target: "web", Verb: http.MethodPost, Path: "/x",
			Header: http.Header{}, Body: body, Length: length})
		if err == nil {
			_ = answer.Body.Close()
		}
		if err == nil || api.AsError(err).Kind != api.Denied {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		_ = body.Close()
	}
}
