package actors_test

import (
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
)

func TestAnswer_ShorterThanAnnounced(t *testing.T) {
	for method, want := range map[string]struct{ body, reason string }{
		"short":  {body: "ok"},              // less than its Content-Length
		"broken": {reason: "indeterminate"}, // a chunked body without its end
	} {
		t.Run(method, func(t *testing.T) {
			inWorld(t, plain, func(t *testing.T, w *world) {
				answer, err := w.runtime.Do(t.Context(), &actors.Call{Actor: api.Actor{Type: "T", ID: "1"},
					Method: method, Verb: "POST"})
				if string(answer.Body) != want.body || reason(err) != want.reason {
					t.Errorf("%q, %v", answer.Body, err)
				}
			})
		})
	}
}
