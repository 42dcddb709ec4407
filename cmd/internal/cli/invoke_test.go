package cli_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestInvoke_RefusesCallsThatCannotBeSent checks that the error of a wrong call names the wrong part, and not the
// address or the node.
func TestInvoke_RefusesCallsThatCannotBeSent(t *testing.T) {
	c := newConsole(t)
	invoke := []string{"invoke", "orders", "--address", "127.0.0.1:1"}
	c.want(2, "", "the verb \"GE T\" is not valid", append(invoke, "status", "--verb", "GE T")...)
	c.want(2, "", "the header \"bad name:x\" is not valid", append(invoke, "status", "-H", "bad name:x")...)
	c.want(2, "", "the header \"a:b\\nc\" is not valid", append(invoke, "status", "-H", "a:b\nc")...)
	c.want(2, "", "the method \"a%zz\" is not a path of a URL", append(invoke, "a%zz")...)
	c.want(2, "", "the method \"a#b\" is not a path of a URL", append(invoke, "a#b")...)
	c.want(1, "", "no node listens at", append(invoke, "a b%2Fc?x=1 2")...)
}

// TestInvoke_FollowsNoRedirect checks that a called application cannot choose where a command sends its next request,
// and with it the API token.
func TestInvoke_FollowsNoRedirect(t *testing.T) {
	c := newConsole(t)
	c.env = append(c.env, "DAPR_API_TOKEN=secret")
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("the foreign host got %s with the token %q", r.URL, r.Header.Get("dapr-api-token"))
		w.WriteHeader(http.StatusBadRequest) // ends a watch
	}))
	defer foreign.Close()
	for _, location := range []string{"/v1.0/shutdown", foreign.URL + "/taken"} {
		t.Run(location, func(t *testing.T) {
			api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1.0/shutdown" {
					t.Errorf("%s %s was sent", r.Method, r.URL)
					w.WriteHeader(http.StatusBadRequest) // ends a watch
					return
				}
				w.Header().Set("Location", location)
				w.WriteHeader(http.StatusTemporaryRedirect)
			})
			server, socket := httptest.NewServer(api), httptest.NewUnstartedServer(api)
			defer server.Close()
			_ = socket.Listener.Close()
			dir, err := os.MkdirTemp(c.home, "s")
			must(t, err)
			socket.Listener, err = net.Listen("unix", filepath.Join(dir, "dapr-orders-http.socket"))
			must(t, err)
			socket.Start()
			defer socket.Close()
			at := []string{"--address", server.URL}
			for _, args := range [][]string{
				append(at, "invoke", "orders", "new"),
				{"invoke", "orders", "new", "--unix-domain-socket", dir},
				append(at, "bench", "watch", "statestore", "--force"),
				append(at, "state", "watch", "statestore"),
			} {
				if r := c.run(args...); r.code != 1 || !strings.Contains(r.stderr, "status 307") {
					t.Errorf("%q: %+v", args, r)
				}
			}
			r := c.run(append(at, "bench", "call", "orders", "new", "--duration", "100ms")...)
			if r.code != 1 || !strings.Contains(r.stderr, "application orders answered with status 307") {
				t.Errorf("bench call: %+v", r)
			}
		})
	}
}
