package node_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/api/http/transcript"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// The replicated store answers as in the recorded requests and responses of the contract, with each log store and
// with several partitions.
func TestStateContract_ReplicatedStore(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../api/http/testdata/contract/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, engine := range []node.LogStore{node.LogStoreBolt, node.LogStoreWAL} {
		for _, partitions := range []int{1, 4} {
			t.Run(string(engine)+"/"+strconv.Itoa(partitions), func(t *testing.T) {
				for _, file := range files {
					t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
						c := config(t)
						c.Data.LogStore, c.Cluster.Partitions = engine, partitions
						c.API.HostWait = time.Millisecond // a transcript calls an actor without a host
						c.Components.Paths = resources(t,
							map[string]string{"orders.yaml": store("orders", "state.raft",
								`{name: actorStateStore, value: "true"}`)})
						replay(t, open(t, c), file)
					})
				}
			})
		}
	}
}

func replay(t *testing.T, n *node.Node, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := transcript.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	client, err := transcript.HTTP("http://" + n.Addresses().API[0])
	if err != nil {
		t.Fatal(err)
	}
	// The replicated store has its own levels, ages and sessions.
	ignore := []string{"Quorate-Consistency", "Quorate-Age", "Quorate-Session"}
	got, err := want.Replay(t.Context(), client, transcript.Options{IgnoreHeaders: ignore, OmitWriteETag: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want.Without(ignore).Format()), string(got.Format())); diff != "" {
		t.Errorf("the answers differ from the transcript (-want +got):\n%s", diff)
	}
}

func TestNode_DefaultStoreSurvivesRestart(t *testing.T) {
	c := config(t)
	n := open(t, c)
	if code, body, _ := ask(t, n, "POST", "/v1.0/state/statestore", `[{"key":"k","value":{"n":1}}]`); code != 204 {
		t.Fatalf("save: %d %s", code, body)
	}
	_, _, before := ask(t, n, "GET", "/v1.0/state/statestore/k?consistency=strong", "")
	closeNode(t, n)
	n = open(t, c)
	code, body, after := ask(t, n, "GET", "/v1.0/state/statestore/k?consistency=strong", "")
	if code != 200 || body != `{"n":1}` || after.Get("Etag") != before.Get("Etag") ||
		after.Get("Quorate-Consistency") != "linearizable" {
		t.Errorf("after the restart: %d %s %v, before %v", code, body, after, before)
	}
	if code, _, _ := ask(t, n, "GET", "/v1.0/healthz", ""); code != 204 {
		t.Errorf("healthz: %d", code)
	}
	if code, body, _ := ask(t, n, "GET", "/readyz", ""); code != 200 && code != 204 {
		t.Errorf("readyz: %d %s", code, body)
	}
}

func TestNode_StoresOfSeveralTypes(t *testing.T) {
	c := config(t)
	c.Components.Paths = resources(t, map[string]string{
		"a.yaml": store("durable", "state.raft", `{name: defaultConsistency, value: strong}`) + "---\n" +
			store("fast", "state.in-memory", ""),
	})
	n := open(t, c)
	for _, name := range []string{"durable", "fast"} {
		if code, body, _ := ask(t, n, "POST", "/v1.0/state/"+name, `[{"key":"k","value":"`+name+`"}]`); code != 204 {
			t.Fatalf("%s: %d %s", name, code, body)
		}
	}
	for _, name := range []string{"durable", "fast"} {
		if _, body, h := ask(t, n, "GET", "/v1.0/state/"+name+"/k", ""); body != `"`+name+`"` ||
			h.Get("Quorate-Consistency") != "linearizable" {
			t.Errorf("%s: %s at %s", name, body, h.Get("Quorate-Consistency"))
		}
	}
	if code, body, _ := ask(t, n, "GET", "/v1.0/state/statestore/k", ""); code != 400 {
		t.Errorf("the default store stands beside declared ones: %d %s", code, body)
	}
}

func TestNode_FailedStartReleasesEverything(t *testing.T) {
	for name, change := range map[string]func(*node.Config){
		"component of an unknown type": func(c *node.Config) {
			c.Components.Paths = resources(t, map[string]string{"a.yaml": store("s", "state.nosuch", "")})
		},
		"endpoint without an address": func(c *node.Config) {
			c.Components.Paths = resources(t, map[string]string{
				"a.yaml": "apiVersion: quorate.dev/v1alpha1\nkind: HTTPEndpoint\nmetadata:\n  name: c\n" +
					"spec: {baseUrl: \"partner\"}\n"})
		},
		"unreadable folder": func(c *node.Config) { c.Components.Paths = []string{"/nonexistent"} },
	} {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			change(&c)
			_, err := node.Open(t.Context(), c, deps(t))
			if err == nil {
				t.Fatal("it started")
			}
			if f, ok := fault.As(err); !ok || f.Code == fault.Internal {
				t.Errorf("the refusal has no cause a person can act on: %v", err)
			}
			c.Components.Paths = nil
			open(t, c) // the directory and the ports are free again
		})
	}
}

func TestNode_ShutdownAPIEndsWait(t *testing.T) {
	n := open(t, config(t))
	if code, _, _ := ask(t, n, "POST", "/v1.0/shutdown", ""); code != 204 {
		t.Fatalf("shutdown: %d", code)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := n.Wait(ctx); err != nil || ctx.Err() != nil {
		t.Errorf("Wait: %v, %v", err, ctx.Err())
	}
}

// As in Dapr, the exit code does not depend on how fast the node closes.
func TestNode_ForcedShutdownExitsWithOne(t *testing.T) {
	codes := make(chan int, 3) // from Close, from the cleanup of the test, and after a while
	d := deps(t)
	d.Exit = func(code int) { codes <- code }
	n := nodetest.OpenWith(t, config(t), d)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://"+n.Addresses().API[0]+"/v1.0/shutdown", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Dapr-Force-Shutdown", "true")
	resp, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if err := errors.Join(n.Wait(t.Context()), n.Close(t.Context())); err != nil {
		t.Error(err)
	}
	select {
	case code := <-codes:
		if code != 1 {
			t.Errorf("exit code %d", code)
		}
	default:
		t.Error("Close has not ended the process")
	}
}

func TestNode_MetricsCoverGroupsAndStores(t *testing.T) {
	c := config(t)
	c.Cluster.Partitions = 2
	n := open(t, c)
	ask(t, n, "POST", "/v1.0/state/statestore", `[{"key":"k","value":1}]`)
	ask(t, n, "GET", "/v1.0/state/statestore/k?consistency=strong", "")
	resp, err := http.Get("http://" + n.Addresses().Metrics + "/metrics") //nolint:noctx // loopback
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`quorate_build_info{cluster="default",version="test"} 1`,
		`quorate_raft_is_leader{group="1"} 1`, `quorate_raft_term{group="0"}`,
		`quorate_store_keys{group="`, `quorate_raft_log_append_seconds_count{group="0"}`,
		`quorate_store_disk_free_bytes`,
		`quorate_state_requests_total{consistency="strong",operation="get",outcome="ok",store="statestore"} 1`,
		`go_goroutines`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
}

func TestNode_Status(t *testing.T) {
	c := config(t)
	c.Cluster.NodeID = "n1"
	n := open(t, c)
	s, err := n.Admin().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !s.Ready || s.Node.ID != "n1" || len(s.Groups) != 1 || s.Groups[0].State != "leader" ||
		s.Groups[0].Leader != "n1" || !s.Groups[0].Writes {
		t.Errorf("status: %+v", s)
	}
	names := make([]string, len(s.Stores))
	for i, one := range s.Stores {
		names[i] = one.Name
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"configstore", "lockstore", "pubsub", "statestore"}) {
		t.Errorf("stores: %q", names)
	}
	i := slices.IndexFunc(s.Stores, func(one schema.StoreStatus) bool { return one.Name == "statestore" })
	if i < 0 || !s.Stores[i].ActorStore || s.Stores[i].KeyPrefix != "appid" {
		t.Errorf("stores: %+v", s.Stores)
	}
}

func TestNode_DeploymentComponentFilesLoadWithoutWarning(t *testing.T) {
	c := config(t)
	c.Components.Paths = []string{"../deploy/components"}
	warnings, err := node.Check(t.Context(), c, os.LookupEnv)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v %v", warnings, err)
	}
	n := open(t, c)
	for _, name := range []string{"statestore", "cache"} {
		if code, body, _ := ask(t, n, "POST", "/v1.0/state/"+name, `[{"key":"k","value":1}]`); code != 204 {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
}

// A stop closes the API before the store, so that requests in progress are answered.
func TestNode_CloseAnswersAcceptedRequests(t *testing.T) {
	n := open(t, config(t))
	url := "http://" + n.Addresses().API[0] + "/v1.0/state/statestore"
	client := http.Client{Timeout: patience}
	var saved atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				save := strings.NewReader(`[{"key":"k","value":1,"options":{"consistency":"strong"}}]`)
				resp, err := client.Post(url, "application/json", save) //nolint:noctx // the client has a time-out
				if err != nil {
					return // the listener is gone
				}
				body, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusNoContent {
					t.Errorf("%d %s", resp.StatusCode, body)
					return
				}
				saved.Add(1)
			}
		})
	}
	poll(t, func() error {
		if saved.Load() < 100 {
			return errors.New("the load has not begun")
		}
		return nil
	})
	closeNode(t, n)
	wg.Wait()
}
