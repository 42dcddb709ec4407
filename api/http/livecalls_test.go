package http_test

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
)

func TestCalls_AreReportedToWatchesWithoutKeys(t *testing.T) {
	f := newFixture(t)
	f.config.Calls = api.NewCallLog(slog.New(slog.DiscardHandler))
	base := f.serve(t)
	ready := make(chan struct{}, 1)
	w, err := f.config.Calls.Watch(api.CallFilter{}, ready)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1.0/state/orders/key-of-caller", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("traceparent", apitest.Parent)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	do(t, http.MethodGet, base+"/v1.0/healthz", "")
	<-ready
	calls, _ := w.Take()
	if len(calls) != 1 {
		t.Fatalf("got %+v", calls)
	}
	if c := calls[0]; c.App != f.App.ID || c.Route != "GET /v1.0/state/{store}/*" || c.Code != answer.StatusCode ||
		c.Level != answer.Header.Get("Quorate-Consistency") || c.Trace != api.TraceID(apitest.Parent) || c.Failed {
		t.Errorf("got %+v", c)
	}
}
