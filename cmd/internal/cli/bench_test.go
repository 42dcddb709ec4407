package cli_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// measured is the JSON output of quorate bench.
type measured struct {
	Benchmark         string
	Clients           int
	Requests, Failed  int64
	RequestsPerSecond float64
	Latency           map[string]float64 `json:"latencyMilliseconds"`
}

func TestBench_MeasuresAndDeletesItsKeys(t *testing.T) {
	c := withNode(t)
	for _, what := range []string{"save", "get", "watch"} {
		args := []string{"bench", what, "statestore", "--clients", "3", "--duration", "200ms", "--json"}
		if what != "watch" {
			args = append(args, "--keys", "205")
		}
		r := c.run(args...)
		var m measured
		if err := json.Unmarshal([]byte(r.stdout), &m); err != nil || r.code != 0 {
			t.Fatalf("%s: %v in %+v", what, err, r)
		}
		if m.Requests == 0 || m.Failed > 0 || m.Clients != 3 || m.RequestsPerSecond <= 0 ||
			m.Latency["p50"] > m.Latency["p99"] || m.Latency["p99"] > m.Latency["max"] || m.Latency["max"] == 0 {
			t.Errorf("%s: %+v", what, m)
		}
	}
	c.want(0, "[]\n", "", "state", "list", "statestore", "--json")
	r := c.run("bench", "save", "statestore", "-d", "100ms", "--keys", "5", "--keep")
	for _, w := range []string{"save to statestore", "16 clients, 5 keys of 256 B, the default consistency",
		"per second\n", "latency    p50 ", "p99.9 ", "failed     0\n"} {
		if !strings.Contains(r.stdout, w) {
			t.Errorf("%q is not in\n%s", w, r.stdout)
		}
	}
	if r := c.run("state", "list", "statestore"); strings.Count(r.stdout, "quorate-bench-") != 5 {
		t.Errorf("kept: %s", r.stdout)
	}
}

func TestBench_RefusesStoreWithOtherData(t *testing.T) {
	c := withNode(t)
	c.want(0, "", "", "state", "set", "statestore", "mine", "1")
	c.want(1, "", "state store statestore has other data of the application, for example the key mine (use a node",
		"bench", "save", "statestore")
	if r := c.run("bench", "save", "statestore", "-d", "100ms", "--force"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	c.want(0, "1", "", "state", "get", "statestore", "mine")
}

// TestBench_RefusesStoreWithOtherDataAfterItsOwn checks that other data is found behind the keys of an earlier run.
// These keys come first in a list, and may fill a page.
func TestBench_RefusesStoreWithOtherDataAfterItsOwn(t *testing.T) {
	c := withNode(t)
	r := c.run("bench", "get", "statestore", "-d", "100ms", "--keys", "1100", "--size", "10", "--keep")
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if r = c.run("bench", "save", "statestore", "-d", "100ms", "--keep"); r.code != 0 {
		t.Errorf("a store with keys of benchmarks only: %+v", r)
	}
	c.want(0, "", "", "state", "set", "statestore", "yours", "1")
	c.want(1, "", "has other data of the application, for example the key yours", "bench", "save", "statestore")
}

func TestBench_RefusesUnsuitableFlags(t *testing.T) {
	c := withNode(t)
	for want, flags := range map[string][]string{
		"--clients 0 is refused (give 1 to 4096)":               {"--clients", "0"},
		"--duration 1ms is refused (give 100ms to 1h)":          {"--duration", "1ms"},
		"--size 1048577 is refused (give 0 to 1048576":          {"--size", "1048577"},
		"--keys 0 is refused":                                   {"--keys", "0"},
		`--consistency "some" is refused (give eventual or str`: {"--consistency", "some"},
	} {
		c.want(2, "", want, slices.Concat([]string{"bench", "save", "statestore"}, flags)...)
	}
	c.want(1, "", "state store statestor is not found (did you mean statestore?)", "bench", "get", "statestor")
}

// TestBench_DeletesItsKeysAfterAFailedStart checks that a benchmark that cannot save all of its keys deletes those
// that it has saved.
func TestBench_DeletesItsKeysAfterAFailedStart(t *testing.T) {
	c := newConsole(t)
	saves, deleted := 0, ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet:
			_, _ = w.Write([]byte(`{"keys":[]}`))
		case strings.HasSuffix(r.URL.Path, "/transaction"):
			body, _ := io.ReadAll(r.Body)
			deleted += string(body)
			w.WriteHeader(http.StatusNoContent)
		default:
			if saves++; saves > 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}
	}))
	defer server.Close()
	c.want(1, "", "status 503", "bench", "get", "statestore", "--keys", "150", "--address", server.URL)
	if !strings.Contains(deleted, `"delete","request":{"key":"quorate-bench-0"}`) {
		t.Errorf("%d saves, and deleted was %q", saves, deleted)
	}
	deleted, saves = "", 0
	c.want(1, "", "status 503", "bench", "get", "statestore", "--keys", "150", "--keep", "--address", server.URL)
	if deleted != "" {
		t.Errorf("with --keep, deleted was %q", deleted)
	}
}

// TestBench_NothingSucceeds checks that a run without a successful request ends with an error, and that the report
// counts the failures.
func TestBench_NothingSucceeds(t *testing.T) {
	c := newConsole(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"errorCode":"ERR_PUBSUB_NOT_READY","message":"the node is starting"}`))
	}))
	defer server.Close()
	r := c.run("bench", "publish", "pubsub", "t", "--duration", "100ms", "--address", server.URL)
	if r.code != 1 || !strings.Contains(r.stderr, "no request has succeeded: the node is starting") ||
		!strings.Contains(r.stdout, "× the node is starting") || !strings.Contains(r.stdout, "requests   0") {
		t.Errorf("%+v", r)
	}
}

// TestBench_DeletesItsKeysWhenInterrupted checks that a signal ends the run, and that the keys are deleted when no save
// is in progress any more.
func TestBench_DeletesItsKeysWhenInterrupted(t *testing.T) {
	c := newConsole(t)
	var saving atomic.Int32
	var interrupt sync.Once
	deleted := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet:
			_, _ = w.Write([]byte(`{"keys":[]}`))
		case strings.HasSuffix(r.URL.Path, "/transaction"):
			body, _ := io.ReadAll(r.Body)
			deleted += string(body)
			if n := saving.Load(); n > 0 {
				t.Errorf("keys are deleted while %d saves are in progress", n)
			}
		default:
			saving.Add(1)
			defer saving.Add(-1)
			interrupt.Do(func() { c.signals <- os.Interrupt })
			_, _ = io.Copy(io.Discard, r.Body)
		}
	}))
	defer server.Close()
	for _, what := range []string{"save", "get"} {
		deleted, interrupt = "", sync.Once{}
		r := c.run("bench", what, "statestore", "--keys", "150", "--duration", "1h", "--address", server.URL)
		if r.code != 1 || !strings.Contains(r.stderr, "interrupted") {
			t.Errorf("%s: %+v", what, r)
		}
		if !strings.Contains(deleted, `"key":"quorate-bench-0"`) ||
			!strings.Contains(deleted, `"key":"quorate-bench-149"`) {
			t.Errorf("%s: deleted was %q", what, deleted)
		}
	}
}
