package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

func TestUnixSockets_ReplaceThePortsOfBothAPIs(t *testing.T) {
	c := nodetest.Config(t)
	c.API.SocketDir = c.Data.RuntimeDir
	path := filepath.Join(c.API.SocketDir, "dapr-shop-http.socket")
	l, err := net.Listen("unix", path) // a process that was killed leaves its socket behind
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	n := nodetest.Open(t, c)
	if a := n.Addresses(); len(a.API) != 1 || a.API[0] != "unix:"+path || len(a.GRPC) != 1 {
		t.Errorf("addresses %+v", a)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}}
	for _, host := range []string{"localhost", "unix"} { // clients of a Unix socket send an arbitrary host name
		answer, err := client.Get("http://" + host + "/v1.0/healthz")
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusNoContent {
			t.Errorf("host %s: status %d", host, answer.StatusCode)
		}
	}
	conn, err := grpc.NewClient("unix:"+filepath.Join(c.API.SocketDir, "dapr-shop-grpc.socket"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if m, err := runtimev1.NewDaprClient(conn).GetMetadata(t.Context(), &runtimev1.GetMetadataRequest{}); err != nil ||
		m.GetId() != "shop" {
		t.Errorf("%v, %v", m, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info, err)
	}
	again := nodetest.Config(t)
	again.API.SocketDir = c.API.SocketDir
	if _, err := node.Open(t.Context(), again, nodetest.Deps(t)); err == nil ||
		!strings.Contains(err.Error(), "a process serves the socket of --unix-domain-socket") {
		t.Errorf("a second node with the socket: %v", err)
	}
	nodetest.Close(t, n)
	if left, _ := filepath.Glob(filepath.Join(c.API.SocketDir, "dapr-*.socket")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestHealthPort_ServesProbesOnly(t *testing.T) {
	c := nodetest.Config(t)
	c.API.Health = node.Port{Number: nodetest.SparePort(t), Given: true}
	c.API.HealthListen = "127.0.0.1"
	c.Security.APITokens = []node.Secret{"token-of-the-api"}
	nodetest.Open(t, c)
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(c.API.Health.Number))
	for path, want := range map[string]int{"/v1.0/healthz": 204, "/v1.0/healthz/outbound": 204, "/livez": 204,
		"/readyz": 200, "/v1.0/metadata": 404, "/v1.0/state/statestore/k": 404, "/v1.0/healthz/../metadata": 404,
		"/v1.0/shutdown": 404} {
		r, err := http.NewRequest(http.MethodGet, "http://"+at+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "node.example" // probes may use a name
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: status %d, want %d", path, answer.StatusCode, want)
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestMetadata_HasWhatDaprClientsRead(t *testing.T) {
	c := nodetest.Config(t)
	c.App.Port, c.App.MaxConcurrency = nodetest.SparePort(t), 5
	c.App.Health.Enabled = true
	_, text, _ := nodetest.Ask(t, nodetest.Open(t, c), "GET", "/v1.0/metadata", "")
	for _, want := range []string{`"appConnectionProperties":{"port":` + strconv.Itoa(c.App.Port) +
		`,"protocol":"http","channelAddress":"127.0.0.1","maxConcurrency":5,"health":{"healthCheckPath":"/healthz",` +
		`"healthProbeInterval":"5s","healthProbeTimeout":"500ms","healthThreshold":3}}`,
		`"name":"statestore","type":"state.raft","version":"v1","capabilities":["ETAG","TRANSACTIONAL","TTL",` +
			`"KEYS_LIKE","ACTOR"]`,
		`"workflows":{"connectedWorkers":0}`, `"subscriptions":[]`, `"httpEndpoints":[]`, `"enabledFeatures":[]`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
	if strings.Contains(text, "activeActors") {
		t.Errorf("%s has activeActors, which Dapr leaves out if there are none", text)
	}
	other := nodetest.Config(t)
	other.Components.Paths = nodetest.Resources(t, map[string]string{
		"s.yaml": nodetest.Store("own", "state.in-memory", "")})
	if _, text, _ = nodetest.Ask(t, nodetest.Open(t, other), "GET", "/v1.0/metadata", ""); strings.Contains(text,
		`"statestore"`) || !strings.Contains(text, `"name":"own"`) {
		t.Errorf("the declared store takes the place of the default one: %s", text)
	}
}

func TestMaxBodySize_LargerThanAnEntry(t *testing.T) {
	if testing.Short() {
		t.Skip("sends 65 MiB")
	}
	c := nodetest.Config(t)
	c.API.MaxBodySize = 100 << 20
	n := nodetest.Open(t, c)
	value := strings.Repeat("a", node.MaxEntry+1<<20)
	code, answer, _ := nodetest.Ask(t, n, "POST", "/v1.0/state/statestore", `[{"key":"k","value":"`+value+`"}]`)
	if code != 400 || !strings.Contains(answer, "too_large") {
		t.Errorf("a value above the largest entry: %d %s", code, answer)
	}
	code, answer, _ = nodetest.Ask(t, n, "POST", "/v1.0/state/statestore/bulk", `{"keys":["k"],"rest":"`+value+`"}`)
	if code != 200 {
		t.Errorf("a body above the largest entry: %d %s", code, answer)
	}
}

func TestMaxHeaderSize_AllowsLargerHeaders(t *testing.T) {
	for size, want := range map[int64]int{0: 431, 64 << 10: 204} {
		c := nodetest.Config(t)
		c.API.MaxHeaderSize = size
		n := nodetest.Open(t, c)
		r, err := http.NewRequest(http.MethodGet, "http://"+n.Addresses().API[0]+"/v1.0/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Large", strings.Repeat("x", 32<<10))
		r.Close = true
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("limit %d: status %d, want %d", size, answer.StatusCode, want)
		}
	}
}

func TestBlockShutdown_ServesUntilTheApplicationIsUnhealthy(t *testing.T) {
	var sick atomic.Bool
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if sick.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer app.Close()
	c := nodetest.Config(t)
	c.App.Port = app.Listener.Addr().(*net.TCPAddr).Port
	// a busy machine may delay some probes, but not all probes of a second
	c.App.Health = node.AppHealth{Enabled: true, Interval: 50 * time.Millisecond, Timeout: 50 * time.Millisecond,
		Threshold: 20}
	c.BlockShutdown = time.Hour
	n := nodetest.Open(t, c)
	healthy := func() error {
		if code, answer, _ := nodetest.Ask(t, n, "GET", "/v1.0/invoke/shop/method/x", ""); code != 200 {
			return fmt.Errorf("%d %s", code, answer)
		}
		return nil
	}
	nodetest.Poll(t, healthy)
	stopping, stop := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() { waited <- n.Wait(stopping) }()
	stop()
	if err := healthy(); err != nil {
		t.Errorf("the node does not serve: %v", err)
	}
	select {
	case err := <-waited:
		t.Errorf("Wait returned %v although the application is healthy", err)
	default:
	}
	sick.Store(true)
	nodetest.Poll(t, func() error {
		select {
		case err := <-waited:
			return err
		default:
			return errors.New("Wait has not returned")
		}
	})
}
