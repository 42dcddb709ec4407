package actors_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// series returns the series of a metric whose value is not 0: label values and value.
func (w *world) series(name string) string {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			if value != 0 {
				out = append(out, strings.Join(labels, " ")+" "+fmt.Sprint(value))
			}
		}
	}
	return strings.Join(out, ", ")
}

func (w *world) wantSeries(wanted map[string]string) {
	w.t.Helper()
	for name, want := range wanted {
		if got := w.series(name); got != want {
			w.t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestMetrics_CountTurnsAndActivations(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		running := w.call(t.Context(), "wait1", "")
		waiting := w.call(t.Context(), "none", "")
		w.wantSeries(map[string]string{
			"quorate_actors": "T 1", "quorate_actor_turns_waiting": "T 1",
			"quorate_actor_activations_total": "ok T 1", "quorate_actor_sessions_total": "app begun 1",
		})
		w.finish("wait1")
		<-running
		<-waiting
		<-time.After(2 * time.Minute) // longer than the idle timeout
		synctest.Wait()
		w.wantSeries(map[string]string{
			"quorate_actors": "", "quorate_actor_turns_waiting": "",
			"quorate_actor_turns_total":           "method not_found T 1, method ok T 1",
			"quorate_actor_turn_duration_seconds": "method T 2",
			"quorate_actor_requests_total":        "not_found 1, ok 1",
			"quorate_actor_deactivations_total":   "idle T 1",
		})
		if got := w.series("quorate_actor_session_renewals_total"); !strings.HasPrefix(got, "app ok ") {
			t.Errorf("renewals %q", got)
		}
	})
}

func TestMetrics_CountLostSessionsAndDrains(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		<-w.call(t.Context(), "a", "")
		w.endSession()
		<-time.After(time.Second)
		<-w.call(t.Context(), "b", "")
		running := w.call(t.Context(), "wait1", "")
		go func() { _ = w.runtime.Close(t.Context()) }()
		<-time.After(time.Minute) // longer than the drain timeout
		w.wantSeries(map[string]string{
			"quorate_actors":                    "",
			"quorate_actor_deactivations_total": "drained T 1, session_ended T 1",
			"quorate_actor_drains_total":        "timeout 1",
			"quorate_actor_sessions_total":      "app begun 2, app left 1, app lost 1",
		})
		w.finish("wait1")
		<-running
	})
}
