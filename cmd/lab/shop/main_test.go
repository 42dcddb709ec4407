package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// beside starts an application with a sidecar that records the requests it receives.
func beside(t *testing.T, name string) (app *httptest.Server, requests *[]string) {
	t.Helper()
	requests = new([]string)
	sidecar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*requests = append(*requests, r.Method+" "+r.URL.RequestURI()+" "+string(body))
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(sidecar.Close)
	h, err := (&shop{sidecar: sidecar.URL, client: sidecar.Client()}).handler(name)
	if err != nil {
		t.Fatal(err)
	}
	app = httptest.NewServer(h)
	t.Cleanup(app.Close)
	return app, requests
}

func post(t *testing.T, url, body string) int {
	t.Helper()
	resp, err := http.Post(url, "application/json",
		strings.NewReader(body)) //nolint:noctx // a loopback listener of this test
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func TestOrders_AreSavedWithStrongConsistency(t *testing.T) {
	app, requests := beside(t, "orders")
	if got := post(t, app.URL+"/orders/a%2Fb", `{"n":1}`); got != http.StatusAccepted {
		t.Errorf("status %d", got)
	}
	if got := post(t, app.URL+"/orders/7", `{`); got != http.StatusBadRequest {
		t.Errorf("broken JSON: %d", got)
	}
	want := `POST /v1.0/state/statestore [{"key":"a/b","options":{"consistency":"strong"},"value":{"n":1}}]`
	if len(*requests) != 1 || (*requests)[0] != want {
		t.Errorf("%q", *requests)
	}
}

func TestWeb_CallsOrders(t *testing.T) {
	app, requests := beside(t, "web")
	post(t, app.URL+"/orders/7", `1`)
	if len(*requests) != 1 || (*requests)[0] != "POST /v1.0/invoke/orders/method/orders/7 1" {
		t.Errorf("%q", *requests)
	}
}

func TestShop_RefusesUnknownApplications(t *testing.T) {
	if _, err := (&shop{}).handler("stock"); err == nil {
		t.Error("taken")
	}
}
