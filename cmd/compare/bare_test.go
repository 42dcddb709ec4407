package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

func TestBare_ReusesAndReopensItsConnection(t *testing.T) {
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/broken" {
			http.Error(w, "no such thing", http.StatusTeapot)
			return
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.Method+" "+string(body))
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	b := &bare{address: hostPort(server.URL)}
	for _, c := range []struct{ method, body, want string }{{"POST", "x", "POST x"}, {"GET", "", "GET "},
		{"POST", "yy", "POST yy"}} {
		var body []byte
		if c.body != "" {
			body = []byte(c.body)
		}
		got, err := b.fetch(t.Context(), c.method, "/", body)
		if err != nil || string(got) != c.want {
			t.Errorf("%q, %v, want %q", got, err, c.want)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for three requests", n)
	}
	if _, err := b.fetch(t.Context(), "GET", "/broken", nil); err == nil ||
		!strings.Contains(err.Error(), "no such thing") {
		t.Errorf("a response without success: %v", err)
	}
	if got, err := b.fetch(t.Context(), "GET", "/", nil); err != nil || string(got) != "GET " {
		t.Errorf("after an error: %q, %v", got, err)
	}
}

func TestEtcdGateway_SendsDocumentedRequests(t *testing.T) {
	values := map[string][]byte{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Key, Value   []byte
			Serializable bool
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.Method != http.MethodPost {
			http.Error(w, "bad", http.StatusBadRequest)
			return
		}
		out := map[string]any{"header": map[string]string{"revision": "2"}}
		switch r.URL.Path {
		case "/v3/kv/put":
			values[string(in.Key)] = in.Value
		case "/v3/kv/range":
			if v, ok := values[string(in.Key)]; ok && in.Serializable {
				out["kvs"] = []map[string]any{{"key": in.Key, "value": v, "version": "1"}}
				out["count"] = "1"
			}
		}
		_ = json.NewEncoder(w).Encode(out)
	}))
	defer server.Close()
	c := &etcdGateway{bare{address: hostPort(server.URL)}}
	if err := c.save(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	if got, err := c.read(t.Context(), "k", false); got != "v" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := c.read(t.Context(), "absent", false); err == nil {
		t.Error("a missing key was read")
	}
}
