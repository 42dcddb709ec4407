package node_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc/codes"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// The method of an actor arrives byte for byte, with its segments and its query.
func TestActorMethods_KeepSegmentsAndQueries(t *testing.T) {
	n, app := oneCallee(t)
	client := runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0]))
	var want []string
	for _, method := range []string{"m", "x/y", "x%2Fy;p=1/w%20%41", "m?a=%2F+&b=c?d", "m?", "x/../y?..", "remind",
		"timer?x/y", "reminder/x", "x/remind/y"} {
		expect(t, n, 200, "POST", "a/method/"+method, "")
		want = append(want, "a/method/"+strings.TrimPrefix(method, "x/../"))
	}
	for method, arrives := range map[string]string{"x/y z": "x/y%20z", "100%/a?b#c": "100%25/a%3Fb%23c",
		"a%2Fb": "a%252Fb"} {
		_, err := client.InvokeActor(t.Context(), &runtimev1.InvokeActorRequest{ActorType: "Counter", ActorId: "a",
			Method: method})
		wantStatus(t, err, codes.OK)
		want = append(want, "a/method/"+arrives)
	}
	app.mu.Lock()
	defer app.mu.Unlock()
	for i, uri := range app.uris {
		if i >= len(want) || uri != want[i] {
			t.Errorf("the application got %q, want %q", app.uris, want)
			break
		}
	}
}

// A caller cannot forge a tick, because the paths of reminders and timers are refused as methods.
func TestActorMethods_AreNoTicks(t *testing.T) {
	n, app := oneCallee(t)
	client := runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0]))
	for _, method := range []string{"remind/r", "timer/t", "Remind/r", "x/../timer/t", "remind//r", "remind/r/more",
		`remind\r`} {
		for _, path := range []string{method, url.PathEscape(method)} {
			if strings.Contains(path, "..%2F") {
				continue // refused because of the escaped dot segment
			}
			text := expect(t, n, 400, "POST", "a/method/"+path, "{}")
			if !strings.Contains(text, "path of a reminder or a timer") {
				t.Errorf("%s: %s", path, text)
			}
		}
		_, err := client.InvokeActor(t.Context(), &runtimev1.InvokeActorRequest{ActorType: "Counter", ActorId: "a",
			Method: method})
		wantStatus(t, err, codes.InvalidArgument)
	}
	expect(t, n, 400, "POST", "a/method/timer;x=1/t", "{}")
	if got := app.callbacks(); len(got) != 0 {
		t.Errorf("the application got %q", got)
	}
}

func TestActorStream_GetsTheDecodedMethod(t *testing.T) {
	n := streamNode(t)
	nodetest.Ready(t, n)
	app := newStreamed(t, n, "T")
	code, text, _ := nodetest.Ask(t, n, "POST", "/v1.0/actors/T/a/method/x/y%20z%2F%25?q=1", "")
	if code != 200 || text != "x/y z/% of a" {
		t.Errorf("%d %s", code, text)
	}
	_, err := runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0])).InvokeActor(t.Context(),
		&runtimev1.InvokeActorRequest{ActorType: "T", ActorId: "a", Method: "x/100%2F"})
	wantStatus(t, err, codes.OK)
	app.await(t, "invoke|a|x/100%2F|")
}

// HTTP/2 can carry spaces in a path. In the request line of HTTP/1.1, a space would end the path, so that the
// application could read another path than the access rules.
func TestMethods_SpacesOfHTTP2AreRefused(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/dapr/config" {
			_, _ = io.WriteString(w, `{"entities":["Counter"]}`)
			return
		}
		_, _ = io.WriteString(w, r.RequestURI)
	}))
	t.Cleanup(app.Close)
	n, _, _ := running(t, map[string]string{"e.yaml": document("HTTPEndpoint", "partner", "  baseUrl: "+app.URL+"\n")},
		func(c *node.Config) { c.App.ID, c.App.Port = "bank", app.Listener.Addr().(*net.TCPAddr).Port })
	awaitType(t, n)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	for _, path := range []string{"invoke/bank/method", "invoke/partner/method", "invoke/" + app.URL + "/method",
		"actors/Counter/a/method"} {
		for rest, want := range map[string]int{"/a": 200, "/a HTTP/1.1": 400, "/a b?c": 400, "/a?b c": 400,
			"/a?b HTTP/1.1": 400} {
			u := &url.URL{Scheme: "http", Host: n.Addresses().API[0], Opaque: "/v1.0/" + path + rest}
			r := (&http.Request{Method: "GET", URL: u, Header: http.Header{}}).WithContext(context.Background())
			answer, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			if answer.StatusCode != want {
				t.Errorf("%s: %d %s, want %d", path+rest, answer.StatusCode, body, want)
			}
		}
	}
}
