package jobs_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/atmostonce"
	"github.com/quorate/quorate/node/nodetest"
)

// newApp starts an application. For each call about a job, it sends the path, the tick, the attempt and the body to
// the channel calls. Its answers have the given statuses, and after that the status 200.
func newApp(t *testing.T, statuses ...int) (port int, calls chan string) {
	t.Helper()
	return newSlowApp(t, 0, statuses...)
}

// newSlowApp is newApp, but each of the first calls, as many as waits, gets no answer before its caller has gone.
func newSlowApp(t *testing.T, waits int, statuses ...int) (port int, calls chan string) {
	t.Helper()
	calls = make(chan string, 100)
	var got atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return // a probe
		}
		body, _ := io.ReadAll(r.Body)
		if int(got.Add(1)) <= waits {
			defer func() { <-r.Context().Done() }()
		}
		if len(statuses) > 0 {
			w.WriteHeader(statuses[0])
			statuses = statuses[1:]
		}
		calls <- r.URL.EscapedPath() + " " + r.Header.Get("Content-Type") + " " +
			r.Header.Get("Quorate-Job-Attempt") + " " + string(body)
	}))
	t.Cleanup(s.Close)
	_, text, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if port, err = strconv.Atoi(text); err != nil {
		t.Fatal(err)
	}
	return port, calls
}

func TestJobs_CallTheApplication(t *testing.T) {
	port, calls := newApp(t, 500, 200)
	c := nodetest.Config(t)
	c.App.Port = port
	n := nodetest.Open(t, c)
	want := func(status int, verb, path, body string) {
		t.Helper()
		if code, text, _ := nodetest.Ask(t, n, verb, path, body); code != status {
			t.Fatalf("%s %s answered %d %s", verb, path, code, text)
		}
	}
	want(204, "POST", "/v1.0/jobs/a%20b", `{"dueTime":"1ms","data":{"order":1},
		"failurePolicy":{"constant":{"interval":"0.1s","maxRetries":5}}}`)
	for _, attempt := range []string{"1", "2"} {
		if got, want := <-calls, "/job/a%20b application/json "+attempt+` {"order":1}`; got != want {
			t.Errorf("the application got %q, want %q", got, want)
		}
	}
	want(204, "POST", "/v1.0/jobs/later", `{"dueTime":"1h"}`)
	want(200, "GET", "/v1.0/jobs/later", "")
	want(409, "POST", "/v1.0/jobs/later", `{"dueTime":"1h"}`)
	want(204, "DELETE", "/v1.0/jobs?prefix=la", "")
	want(404, "GET", "/v1.0/jobs/later", "")
}

// If the answer of the application has too many headers, the node refuses it. This counts as a failed attempt, so the
// failure policy limits the number of attempts.
func TestJobs_RefusedAnswerIsAFailedAttempt(t *testing.T) {
	attempts := make(chan string, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return // a probe
		}
		for i := range 2 * atmostonce.DefaultMaxFields {
			w.Header().Add("X-Many", strconv.Itoa(i))
		}
		attempts <- r.Header.Get("Quorate-Job-Attempt")
	}))
	t.Cleanup(s.Close)
	c := nodetest.Config(t)
	c.App.Port = s.Listener.Addr().(*net.TCPAddr).Port
	n := nodetest.Open(t, c)
	if code, text, _ := nodetest.Ask(t, n, "POST", "/v1.0/jobs/a", `{"dueTime":"1ms",
		"failurePolicy":{"constant":{"interval":"0.01s","maxRetries":2}}}`); code != 204 {
		t.Fatalf("%d %s", code, text)
	}
	nodetest.Poll(t, func() error {
		if code, _, _ := nodetest.Ask(t, n, "GET", "/v1.0/jobs/a", ""); code != 404 {
			return fmt.Errorf("the job is there after %d attempts: %d", len(attempts), code)
		}
		return nil
	})
	for _, want := range []string{"1", "2", "3"} {
		if got := <-attempts; got != want {
			t.Errorf("attempt %s, want %s", got, want)
		}
	}
	if len(attempts) > 0 {
		t.Errorf("%d further attempts", len(attempts))
	}
}

func TestJobs_ShowThatTheyWaitForAnInstance(t *testing.T) {
	n := nodetest.Open(t, nodetest.Config(t)) // no --app-port
	for _, name := range []string{"now", "later"} {
		due := map[string]string{"now": "0s", "later": "1h"}[name]
		if code, text, _ := nodetest.Ask(t, n, "POST", "/v1.0/jobs/"+name, `{"dueTime":"`+due+`"}`); code != 204 {
			t.Fatalf("%s: %d %s", name, code, text)
		}
	}
	nodetest.Poll(t, func() error {
		list, err := n.Admin().ListJobs(t.Context(), schema.JobSelection{})
		if err != nil || len(list) != 2 || list[1].Waiting != "an instance" || list[0].Waiting != "" {
			return fmt.Errorf("%+v, %w", list, err)
		}
		return nil
	})
}

func TestJobs_ListSelectsNamesAndLeavesOutData(t *testing.T) {
	n := nodetest.Open(t, nodetest.Config(t))
	for _, name := range []string{"a", "ab", "b"} {
		if code, text, _ := nodetest.Ask(t, n, "POST", "/v1.0/jobs/"+name, `{"dueTime":"1h","data":1}`); code != 204 {
			t.Fatalf("%s: %d %s", name, code, text)
		}
	}
	for want, r := range map[string]schema.JobSelection{
		"a+data ab+data b+data": {},
		"a ab b":                {Brief: true},
		"a+data ab+data":        {Name: "a"},
		"a+data":                {Name: "a", Exact: true},
		"":                      {Name: "c", Exact: true},
	} {
		list, err := n.Admin().ListJobs(t.Context(), r)
		var got []string
		for i := range list {
			text := list[i].Name
			if strings.Contains(string(list[i].Job), `"data"`) {
				text += "+data"
			}
			got = append(got, text)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%+v: %q, %v, want %q", r, got, err, want)
		}
	}
}

func TestJobs_UseTheResiliencyPolicyOfTheApplication(t *testing.T) {
	for name, c := range map[string]struct {
		policy   string // of the target
		statuses []int
		waits    int // number of the first deliveries without an answer
		want     []string
	}{
		"retries":       {"retry: often", []int{500, 503, 200}, 0, []string{"1", "1", "1"}},
		"other status":  {"retry: busy", []int{500, 200}, 0, []string{"1", "2"}},
		"timeout":       {"timeout: quick", nil, 1, []string{"1", "2"}},
		"both":          {"timeout: quick, retry: often", nil, 1, []string{"1", "1"}},
		"circuit opens": {"circuitBreaker: careful", []int{500, 200}, 0, []string{"1", "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port, calls := newSlowApp(t, c.waits, c.statuses...)
			conf := nodetest.Config(t)
			conf.App.Port = port
			conf.Components.Paths = nodetest.Resources(t, map[string]string{"r.yaml": `apiVersion: quorate.dev/v1alpha1
kind: Resiliency
metadata: {name: r}
spec:
  policies:
    timeouts: {quick: 2s}
    retries:
      often: {policy: constant, duration: 1ms, maxRetries: 3}
      busy: {policy: constant, duration: 1ms, maxRetries: 3, matching: {httpStatusCodes: "503"}}
    circuitBreakers:
      careful: {maxRequests: 1, timeout: 300ms, trip: consecutiveFailures > 0}
  targets:
    apps:
      ` + conf.App.ID + `: {` + c.policy + `}
`})
			n := nodetest.Open(t, conf)
			begun := time.Now()
			code, text, _ := nodetest.Ask(t, n, "POST", "/v1.0/jobs/a", `{"dueTime":"1ms",
				"failurePolicy":{"constant":{"interval":"0.01s","maxRetries":5}}}`)
			if code != 204 {
				t.Fatalf("%d %s", code, text)
			}
			for _, attempt := range c.want {
				if got, want := <-calls, "/job/a application/json "+attempt+" "; got != want {
					t.Errorf("the application got %q, want %q", got, want)
				}
			}
			if took := time.Since(begun); name == "circuit opens" && took < 300*time.Millisecond {
				t.Errorf("the second delivery came after %v, while the circuit was open", took)
			}
		})
	}
}
