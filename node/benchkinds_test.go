package node_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/raftfsm/group"
)

// BenchmarkKinds measures what BenchmarkCluster does not: values of other sizes, requests for many keys, and calls to
// applications. It measures a follower of three nodes, and a single node. The baseline of a read is a constant answer
// of the same size. The baseline of a write is a plain file, and the baseline of a call is the application itself.
func BenchmarkKinds(b *testing.B) {
	c := newKinds(b)
	for _, size := range []int{64, 4 << 10, 64 << 10, 1 << 20} {
		value := strings.Repeat("v", size)
		set := func(i int) []byte {
			return saveRequest(i%benchKeys, value, "strong")
		}
		many := 64
		if size >= 1<<20 {
			many = 8 // with more clients, requests would be refused instead of queued
		}
		for _, clients := range []int{1, many} {
			name := fmt.Sprintf("%dB/clients=%d", size, clients)
			b.Run("save/"+name, func(b *testing.B) { amongSaves(b, c.follower(b), c.single, clients, set) })
			b.Run("get/eventual/"+name, func(b *testing.B) {
				c.fill(b, set)
				c.answers(b, clients, getRequest("/v1.0/state/statestore/k0"))
			})
			b.Run("get/strong/"+name, func(b *testing.B) {
				c.fill(b, set)
				c.answers(b, clients, getRequest("/v1.0/state/statestore/k0?consistency=strong"))
			})
		}
	}
	value := strings.Repeat("v", benchBytes)
	set := func(i int) []byte { return saveRequest(i%benchKeys, value, "strong") }
	for _, clients := range []int{1, 64, 512} {
		name := "clients=" + strconv.Itoa(clients)
		b.Run("bulk-save-100/"+name, func(b *testing.B) {
			amongSaves(b, c.follower(b), c.single, clients, func(i int) []byte {
				return post("", items(100, i, value))
			})
		})
		b.Run("transaction-10/"+name, func(b *testing.B) {
			amongSaves(b, c.follower(b), c.single, clients, func(i int) []byte {
				return post("/transaction", transaction(10, i, value))
			})
		})
		b.Run("bulk-get-100/"+name, func(b *testing.B) {
			c.fill(b, set)
			c.answers(b, clients, post("/bulk", keys(100)))
		})
		b.Run("invoke-beside/"+name, func(b *testing.B) { c.calls(b, clients, c.nodes[0]) })
		b.Run("invoke-elsewhere/"+name, func(b *testing.B) { c.calls(b, clients, c.nodes[1]) })
	}
}

// kinds is a cluster of three nodes, and a single node. The called application is on the first of the three nodes
// and on the single node.
type kinds struct {
	single *node.Node
	nodes  []*node.Node
	app    string // address of the application
}

func newKinds(b *testing.B) *kinds {
	b.Helper()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"answer":42}`)
	}))
	b.Cleanup(app.Close)
	c := &kinds{app: app.Listener.Addr().String()}
	port := app.Listener.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it listens on TCP
	lone := config(b)
	lone.App.Port = port
	c.single = open(b, lone)
	c.nodes, _ = threeWith(b, func(conf *node.Config) {
		conf.Cluster.Timing = group.Timing{}
		if conf.Cluster.NodeID == "n1" {
			conf.App.Port = port
		}
	})
	leads(b, c.nodes)
	for _, n := range append(c.nodes[:2:2], c.single) {
		poll(b, func() error {
			if code, body, _ := ask(b, n, "GET", invokePath, ""); code != 200 {
				return fmt.Errorf("%d %s", code, body)
			}
			return nil
		})
	}
	return c
}

const invokePath = "/v1.0/invoke/shop/method/answer"

// follower returns a node that does not lead.
func (c *kinds) follower(b *testing.B) *node.Node {
	b.Helper()
	return c.nodes[(leads(b, c.nodes)+1)%3]
}

// fill writes the first hundred keys to both clusters, and waits until the follower returns them.
func (c *kinds) fill(b *testing.B, set func(i int) []byte) {
	b.Helper()
	for _, n := range []*node.Node{c.follower(b), c.single} {
		run(b, dialAll(b, n.Addresses().API[0], 4), 100, "204", func(_, i int) []byte { return set(i - 1) })
	}
	poll(b, func() error {
		if code, body, _ := ask(b, c.follower(b), "GET", "/v1.0/state/statestore/k99", ""); code != 200 {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
}

// answers measures a request whose answers are of one size.
func (c *kinds) answers(b *testing.B, clients int, request []byte) {
	b.Helper()
	length := answerLength(b, c.single, request)
	floor := bareChi(b, strings.Repeat("v", length))
	gets := func(addr string, request []byte) func(n int) time.Duration {
		conns := dialAll(b, addr, clients)
		return func(n int) time.Duration {
			return run(b, conns, n, "200", func(_, _ int) []byte { return request })
		}
	}
	among(b, gets(c.follower(b).Addresses().API[0], request), gets(c.single.Addresses().API[0], request),
		gets(floor, getRequest("/v1.0/state/statestore/k0")))
}

func (c *kinds) calls(b *testing.B, clients int, at *node.Node) {
	b.Helper()
	calls := func(addr, path string) func(n int) time.Duration {
		conns := dialAll(b, addr, clients)
		return func(n int) time.Duration {
			return run(b, conns, n, "200", func(_, _ int) []byte { return getRequest(path) })
		}
	}
	among(b, calls(at.Addresses().API[0], invokePath), calls(c.single.Addresses().API[0], invokePath),
		calls(c.app, "/answer"))
}

// answerLength returns the size of the body of the answer to a request.
func answerLength(b *testing.B, n *node.Node, request []byte) int {
	b.Helper()
	conn := dial(b, n.Addresses().API[0])
	if _, err := conn.conn.Write(request); err != nil {
		b.Fatal(err)
	}
	answer, err := http.ReadResponse(conn.r, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || len(body) == 0 {
		b.Fatalf("%s with %d bytes, %v", answer.Status, len(body), err)
	}
	return len(body)
}

func post(path, body string) []byte {
	return []byte("POST /v1.0/state/statestore" + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " +
		strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

// items returns n keys and values to save, numbered from first.
func items(n, first int, value string) string {
	var body bytes.Buffer
	for i := range n {
		fmt.Fprintf(&body, `,{"key":"k%d","value":"%s","options":{"consistency":"strong"}}`, (first+i)%benchKeys,
			value)
	}
	return "[" + body.String()[1:] + "]"
}

func transaction(n, first int, value string) string {
	var body bytes.Buffer
	for i := range n {
		fmt.Fprintf(&body, `,{"operation":"upsert","request":{"key":"k%d","value":"%s"}}`, (first+i)%benchKeys, value)
	}
	return `{"operations":[` + body.String()[1:] + "]}"
}

// keys returns the body of a bulk read of the first n keys.
func keys(n int) string {
	var body bytes.Buffer
	for i := range n {
		fmt.Fprintf(&body, `,"k%d"`, i)
	}
	return `{"keys":[` + body.String()[1:] + "]}"
}
