package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeRuntime stores jobs and reminders, and calls the application when they are due.
type fakeRuntime struct {
	app *dueApp

	mu      sync.Mutex
	created []string // paths
	late    time.Duration
}

func (f *fakeRuntime) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	var body struct{ DueTime string }
	text, _ := io.ReadAll(r.Body)
	due := time.Time{}
	if json.Unmarshal(text, &body) == nil {
		due, _ = time.Parse(time.RFC3339, body.DueTime) // zero for a duration, which no test waits for
	}
	_, name := splitPath(r.URL.Path)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.created = append(f.created, r.Method+" "+r.URL.Path)
	if due.IsZero() {
		return
	}
	path := "/job/" + name
	if strings.Contains(r.URL.Path, "/reminders/") {
		path = "/actors/" + workerType + "/1/method/remind/" + name
	}
	time.AfterFunc(time.Until(due)+f.late, func() {
		f.app.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, http.NoBody))
	})
}

// newFake returns a runner of a fake runtime that delivers jobs and reminders by the duration late after their due
// time.
func newFake(t *testing.T, late time.Duration) (*runner, *fakeRuntime) {
	t.Helper()
	app, err := startDueApp()
	if err != nil {
		t.Fatal(err)
	}
	fake := &fakeRuntime{app: app, late: late}
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	f := &forwarder{processes: &processes{}, title: "fake"}
	r := newRunner(f, []string{strings.TrimPrefix(server.URL, "http://")}, app, 20)
	t.Cleanup(r.end)
	r.lead = 0
	return r, fake
}

func TestRunner_MeasuresDeliveries(t *testing.T) {
	const late = 100 * time.Millisecond
	r, _ := newFake(t, late)
	for base, pace := range map[operation]operation{fireJobs: paceJobs, fireReminders: paceReminders} {
		var burst, even figures
		if err := r.measure(t.Context(), &even, pace, 4, "", 0); err == nil {
			t.Errorf("%s is measured without a rate", pace)
		}
		if err := r.measure(t.Context(), &burst, base, 4, "", 0); err != nil {
			t.Fatal(err)
		}
		if err := r.measure(t.Context(), &even, pace, 4, "", 0); err != nil {
			t.Fatal(err)
		}
		for name, f := range map[string]*figures{"at one moment": &burst, "at half the rate": &even} {
			if f.count != r.count || f.quantile(0.01) < late {
				t.Errorf("%s, %s: %d deliveries, the first after %s", base, name, f.count, f.quantile(0.01))
			}
		}
		if burst.rate() > float64(r.count)/late.Seconds() || even.rate() >= burst.rate() {
			t.Errorf("%s: %.0f a second at one moment, %.0f at half the rate", base, burst.rate(), even.rate())
		}
	}
}

func TestRunner_WaitsUntilAllIsServed(t *testing.T) {
	r, fake := newFake(t, 0)
	if _, err := r.running(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"GET " + invokePath, "POST /v1.0/actors/Worker/0/method/value", "POST /v1.0-alpha1/jobs/1-0",
		"POST /v1.0/actors/Worker/0/reminders/1-0"}
	if !slices.Equal(fake.created, want) {
		t.Errorf("the runtime gets %q, expected %q", fake.created, want)
	}
}

func TestDueApp_CountsEachDeliveryOnce(t *testing.T) {
	a, err := startDueApp()
	if err != nil {
		t.Fatal(err)
	}
	defer a.end()
	a.expect(7, 2)
	first := time.Now()
	for _, name := range []string{"7-0", "7-0", "6-1", "7-2", "7-x", "ready"} {
		a.arrive(name, first)
	}
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.wait(short, time.Hour); err == nil || !strings.Contains(err.Error(), "1 of 2") {
		t.Errorf("one is missing: %v", err)
	}
	a.arrive("7-1", first.Add(time.Second))
	if err := a.wait(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	if got := a.arrivals(); !got[0].Equal(first) || !got[1].Equal(first.Add(time.Second)) {
		t.Errorf("they arrived at %s", got)
	}
}
