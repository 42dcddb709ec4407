package http_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api"
	apihttp "github.com/quorate/quorate/api/http"
)

// starting serves a node that has no stores yet and holds requests for at most limit.
func starting(t *testing.T, limit time.Duration) (f *fixture, base string) {
	t.Helper()
	f = newFixture(t)
	f.config.Start, f.config.RequestTimeout = api.NewStartGate(), limit
	face, err := apihttp.New(f.config)
	if err != nil {
		t.Fatal(err)
	}
	return f, serve(t, face)
}

func TestStart_HoldsRequestsUntilTheyCanBeServed(t *testing.T) {
	f, base := starting(t, time.Minute)
	saved := make(chan int, 1)
	go func() {
		request, _ := http.NewRequest("POST", base+"/v1.0/state/orders", strings.NewReader(`[{"key":"a","value":1}]`))
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			saved <- 0
			return
		}
		_ = response.Body.Close()
		saved <- response.StatusCode
	}()
	for path, want := range map[string]int{"/v1.0/healthz": 204, "/v1.0/healthz/outbound": 204, "/livez": 204,
		"/v1.0/metadata": 200} {
		if status, _, body := do(t, "GET", base+path, ""); status != want {
			t.Errorf("%s while the node starts: %d %s", path, status, body)
		}
	}
	select {
	case status := <-saved:
		t.Fatalf("a request was answered with %d before the node can serve", status)
	default:
	}
	f.config.Start.Open()
	if status := <-saved; status != http.StatusNoContent {
		t.Errorf("the request that was held: %d", status)
	}
}

func TestStart_HeldRequestIsAnsweredInTime(t *testing.T) {
	f := newFixture(t)
	f.Adapt("starting")
	f.refit()
	f.config.Start, f.config.RequestTimeout = api.NewStartGate(), 20*time.Millisecond
	face, err := apihttp.New(f.config)
	if err != nil {
		t.Fatal(err)
	}
	if status, _, body := do(t, "GET", serve(t, face)+"/v1.0/state/orders/a", ""); status != 500 ||
		!strings.Contains(body, `"reason":"starting"`) {
		t.Errorf("%d %s", status, body)
	}
}
