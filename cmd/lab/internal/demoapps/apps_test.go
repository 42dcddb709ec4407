package demoapps

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The slower instance retries: no item is sold twice.
func TestStock_TakesFromTheCurrentAmount(t *testing.T) {
	const before, now = "1", "2"
	etag, count, called := before, 10, ""
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case strings.HasPrefix(r.URL.Path, "/v1.0/invoke/"):
			called = r.URL.Path + " " + string(body)
		case r.Method == http.MethodGet:
			w.Header().Set("ETag", etag)
			_ = json.NewEncoder(w).Encode(count)
			if etag == before { // another instance takes 3 in between
				etag, count = now, 7
			}
		case !strings.Contains(string(body), `"etag":"`+now+`"`):
			w.WriteHeader(http.StatusConflict)
		case !strings.Contains(string(body), `"value":5`):
			t.Errorf("saved %s", body)
		}
	}))
	defer node.Close()
	mux := http.NewServeMux()
	sidecar{base: node.URL + "/v1.0", client: node.Client()}.serveStock(mux)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/take",
		strings.NewReader(`{"id":"o","item":"tea","count":2}`)))
	if w.Code != http.StatusOK || !strings.HasPrefix(called, `/v1.0/invoke/orders/method/taken {"order":"o","left":5`) {
		t.Errorf("%d %s, called %s", w.Code, w.Body, called)
	}
}

// The node sends a signal to the application, which ends the context.
func TestApp_EndsWithItsContext(t *testing.T) {
	t.Setenv("APP_PORT", "0")
	f := flag.NewFlagSet("app", flag.ContinueOnError)
	if err := f.Parse([]string{"orders"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- App(f)(ctx) }()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestApp_ReportsAPortThatIsTaken(t *testing.T) {
	taken := httptest.NewServer(http.NotFoundHandler())
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APP_PORT", port)
	if err := serve(t.Context(), "orders"); err == nil {
		t.Error("no error")
	}
}
