package node_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
)

// BenchmarkCost measures the processor time of the usual requests of 64 clients at one node. The result is the ratio
// to the cheapest server in Go for such a request. For a call, this is the application itself, and otherwise a bare
// chi handler with the same answer. The ratio hardly depends on other load on the machine. make bench-check compares
// it with node/testdata/costs.
func BenchmarkCost(b *testing.B) {
	const clients, keyCount = 64, 100
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"answer":42}`)
	}))
	b.Cleanup(app.Close)
	c := config(b)
	c.Data.LogStore = node.LogStoreWAL
	c.App.Port = app.Listener.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it listens on TCP
	n := open(b, c)
	value := strings.Repeat("v", benchBytes)
	save := func(level string) func(int) []byte {
		return func(i int) []byte { return saveRequest(i%keyCount, value, level) }
	}
	get := func(query string) func(int) []byte {
		return func(i int) []byte { return getRequest("/v1.0/state/statestore/k" + strconv.Itoa(i%keyCount) + query) }
	}
	set := save("strong")
	run(b, dialAll(b, n.Addresses().API[0], 1), keyCount, "204", func(_, i int) []byte { return set(i) })
	bulk := post("/bulk", keys(keyCount))
	item, list := answerLength(b, n, get("")(0)), answerLength(b, n, bulk)
	for _, c := range []struct {
		name   string
		make   func(i int) []byte
		status string
		floor  string // address
		path   []byte // request to the floor
	}{
		{"get-eventual", get(""), "200", bareChi(b, strings.Repeat("v", item)), get("")(0)},
		{"get-strong", get("?consistency=strong"), "200", bareChi(b, strings.Repeat("v", item)), get("")(0)},
		{"save-eventual", save("eventual"), "204", bareChi(b, ""), get("")(0)},
		{"save-strong", save("strong"), "204", bareChi(b, ""), get("")(0)},
		{"bulk-get-100", func(int) []byte { return bulk }, "200", bareChi(b, strings.Repeat("v", list)), get("")(0)},
		{"invoke", func(int) []byte { return getRequest(invokePath) }, "200", app.Listener.Addr().String(),
			getRequest("/answer")},
	} {
		b.Run(c.name, func(b *testing.B) {
			mine, theirs := dialAll(b, n.Addresses().API[0], clients), dialAll(b, c.floor, clients)
			var here, there time.Duration
			against(b, fineRounds,
				spending(b, &here, func(n int) time.Duration {
					return run(b, mine, n, c.status, func(_, i int) []byte { return c.make(i) })
				}),
				spending(b, &there, func(n int) time.Duration {
					return run(b, theirs, n, "200", func(_, _ int) []byte { return c.path })
				}))
			b.ReportMetric(there.Seconds()/here.Seconds(), "x-floor-cpu")
		})
	}
}
