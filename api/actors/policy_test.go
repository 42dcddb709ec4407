package actors_test

import (
	"testing"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/internal/fault"
)

func TestPolicy_RepeatsCalls(t *testing.T) {
	retry := &resiliency.Retry{Pause: time.Second, Max: 2}
	for name, c := range map[string]struct {
		policy *resiliency.Policy
		method string
		want   string // turns
	}{
		"none":               {nil, "none", "none"},
		"without retries":    {&resiliency.Policy{Timeout: time.Minute}, "none", "none"},
		"a failure":          {&resiliency.Policy{Retry: retry}, "none", "none none none"},
		"a success":          {&resiliency.Policy{Retry: retry}, "works", "works"},
		"a status it leaves": {&resiliency.Policy{Retry: withStatus(retry, 500)}, "none", "none"},
		"a status it names":  {&resiliency.Policy{Retry: withStatus(retry, 404)}, "none", "none none none"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, plain, func(t *testing.T, w *world) {
				w.policy = c.policy
				if err := <-w.call(t.Context(), c.method, ""); (err != nil) != (c.method == "none") {
					t.Error(err)
				}
				if got := w.turns(); got != c.want {
					t.Errorf("turns %q, want %q", got, c.want)
				}
			})
		})
	}
}

func withStatus(r *resiliency.Retry, status int) *resiliency.Retry {
	copied := *r
	copied.Statuses = resiliency.StatusSet{{status, status}}
	return &copied
}

// If an earlier attempt may have been executed, the error is indeterminate, even if the last attempt did not reach the
// application.
func TestPolicy_EarlierAttemptMayHaveBeenExecuted(t *testing.T) {
	for name, c := range map[string]struct {
		fails []fault.Code
		want  string
	}{
		"unreachable":       {[]fault.Code{fault.Unavailable}, api.ReasonUnavailable},
		"unreachable later": {[]fault.Code{fault.Indeterminate, fault.Unavailable}, api.ReasonIndeterminate},
		"not in time later": {[]fault.Code{fault.Indeterminate, fault.Timeout}, api.ReasonIndeterminate},
		"unanswered later":  {[]fault.Code{fault.Timeout, fault.Indeterminate}, api.ReasonIndeterminate},
		"overloaded":        {[]fault.Code{fault.Overloaded}, api.ReasonOverloaded},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, plain, func(t *testing.T, w *world) {
				w.policy = &resiliency.Policy{Retry: &resiliency.Retry{Pause: time.Second, Max: 1}}
				w.elsewhere, w.fails = &actors.Answer{Status: 200}, c.fails
				if err := <-w.call(t.Context(), "works", ""); reason(err) != c.want {
					t.Errorf("%v, want %s", err, c.want)
				}
			})
		})
	}
}

// A timeout of the policy ends the call, but not the turn, because the application still works on it.
func TestPolicy_TimeoutEndsTheCall(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		w.policy = &resiliency.Policy{Timeout: 5 * time.Second}
		begun := time.Now()
		if err := <-w.call(t.Context(), "wait1", ""); reason(err) != api.ReasonIndeterminate {
			t.Errorf("%v", err)
		}
		if took := time.Since(begun); took != 5*time.Second {
			t.Errorf("the call took %v", took)
		}
		next := w.call(t.Context(), "b", "")
		if got := w.turns(); got != "wait1" {
			t.Errorf("turns %q while the first one runs", got)
		}
		w.finish("wait1")
		if err := <-next; err != nil {
			t.Error(err)
		}
	})
}
