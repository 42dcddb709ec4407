package node_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api/http/transcript"
	"github.com/quorate/quorate/node"
)

var update = flag.Bool("update", false, "write the answers that came into testdata/dapr")

// The transcripts in testdata/dapr show what clients of Dapr rely on: one file for each subject.
func TestDaprTranscripts_Match(t *testing.T) {
	files, err := filepath.Glob("testdata/dapr/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			n, _, _ := running(t, daprFiles(t), func(c *node.Config) {
				c.App.Port, c.App.ID = daprApp(t), "shop"
			})
			ready(t, n)
			client, err := transcript.HTTP("http://" + n.Addresses().API[0])
			if err != nil {
				t.Fatal(err)
			}
			replayFile(t, file, client)
		})
	}
}

// replayFile sends the requests of a transcript and compares the answers.
func replayFile(t *testing.T, file string, d transcript.Doer) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := transcript.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	got, err := want.Replay(t.Context(), d, transcript.Options{IgnoreHeaders: []string{"Date", "Metadata.date"}})
	if err != nil {
		t.Fatal(err)
	}
	answers := ports().ReplaceAll(got.Format(), []byte("$1<port>"))
	if *update {
		if err := os.WriteFile(file, answers, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(want.Format()), string(answers)); diff != "" {
		t.Errorf("the answers differ from the transcript (-want +got):\n%s", diff)
	}
}

// ports matches the ports in the metadata, which differ from run to run.
func ports() *regexp.Regexp { return regexp.MustCompile(`("port":|"127\.0\.0\.1:)\d+`) }

// daprFiles returns the component files of the transcripts. The servers that they name end with the test.
func daprFiles(t *testing.T) map[string]string {
	t.Helper()
	outside := httptest.NewServer(http.HandlerFunc(echo))
	t.Cleanup(outside.Close)
	topic := &lastRequest{}
	events := httptest.NewServer(topic)
	t.Cleanup(events.Close)
	value := func(name, v string) string { return fmt.Sprintf("  - {name: %s, value: %q}\n", name, v) }
	return map[string]string{
		"store.yaml": store("orders", "state.in-memory", `{name: actorStateStore, value: "true"}`),
		"partner.yaml": document("HTTPEndpoint", "partner", "  baseUrl: "+outside.URL+
			"/base\n  headers: [{name: X-Key, value: k}]\n"),
		"down.yaml":  document("HTTPEndpoint", "down", "  baseUrl: http://127.0.0.1:1\n"),
		"topic.yaml": document("HTTPEndpoint", "topic", "  baseUrl: "+events.URL+"\n"),
		"hook.yaml": document("Component", "hook", "  type: bindings.http\n  version: v1\n  metadata:\n"+
			value("url", outside.URL+"/hook")),
		"events.yaml": document("Component", "events",
			"  type: bindings.azure.eventgrid\n  version: v1\n  metadata:\n"+value("accessKey", "key")+
				value("topicEndpoint", events.URL+"/api/events")),
		"retries.yaml": document("Resiliency", "retries", "  policies:\n    retries:\n      again: {policy: constant, "+
			"duration: 1ms, maxRetries: 3, matching: {httpStatusCodes: \"200,503\"}}\n"+
			"  targets:\n    apps:\n      shop: {retry: again}\n"),
	}
}

// daprApp starts the application of the transcripts and returns its port.
func daprApp(t *testing.T) int {
	t.Helper()
	var mu sync.Mutex
	counts := map[string]int{}
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		kind, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		code, _ := strconv.Atoi(rest)
		switch {
		case kind == "dapr" || kind == "options":
			w.WriteHeader(http.StatusNotFound)
		case kind == "calls":
			_, _ = fmt.Fprint(w, counts["/"+rest])
		case kind == "status" && code >= 200:
			counts[r.URL.Path]++
			w.WriteHeader(code)
		default:
			echo(w, r)
		}
	}))
	t.Cleanup(app.Close)
	u, err := url.Parse(app.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// echo answers with the parts of a request that do not change from run to run.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	trace := strings.Split(r.Header.Get("Traceparent"), "-")
	out := map[string]string{"path": r.Method + " " + r.RequestURI, "body": string(body)}
	for _, name := range []string{"Baggage", "Te", "X-Key", "Dapr-Caller-App-Id", "Dapr-Callee-App-Id"} {
		if v := r.Header.Get(name); v != "" {
			out[name] = v
		}
	}
	if len(trace) > 1 && trace[1] == traceID {
		out["trace"] = trace[1]
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Baggage", "answer=1")
	_ = json.NewEncoder(w).Encode(out)
}

// lastRequest is a topic of Azure Event Grid that shows the last request that it received.
type lastRequest struct {
	mu   sync.Mutex
	text string // guarded by mu
}

func (l *lastRequest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Method == http.MethodGet {
		_, _ = io.WriteString(w, l.text)
		return
	}
	body, _ := io.ReadAll(r.Body)
	l.text = r.Header.Get("Content-Type") + " " + string(body)
}
