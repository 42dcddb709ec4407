package node_test

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
)

// watched opens a node with several applications, which share the keys of the store watched. It returns the addresses
// of their APIs. Several applications are necessary, because the number of watches of one listener is limited.
func watched(b *testing.B, apps int) []string {
	b.Helper()
	c := config(b)
	c.Components.Paths = resources(b, map[string]string{"watched.yaml": store("watched", "state.raft",
		"{name: keyPrefix, value: name}")})
	for i := range apps - 1 {
		app := node.App{ID: "app" + strconv.Itoa(i)}
		c.Apps = append(c.Apps, node.AppEntry{App: app, HTTPPort: node.Port{Given: true}})
	}
	n := open(b, c)
	ready(b, n)
	var out []string
	for _, one := range n.Addresses().Apps { // the first one too
		out = append(out, one.API[0])
	}
	return out
}

// openWatch starts a watch and reads up to its first bookmark.
func openWatch(b *testing.B, addr string) *rawClient {
	b.Helper()
	c := dial(b, addr)
	if _, err := c.conn.Write(getRequest("/v1.0/watch/watched")); err != nil {
		b.Fatal(err)
	}
	if line, err := c.r.ReadString('\n'); err != nil || !strings.Contains(line, " 200 ") {
		rest, _ := c.r.Peek(c.r.Buffered())
		b.Fatalf("%q, %v: %s", line, err, rest)
	}
	if err := c.event("bookmark"); err != nil {
		b.Fatal(err)
	}
	return c
}

// event reads up to an event of a type.
func (c *rawClient) event(kind string) error {
	want := []byte(`{"type":"` + kind + `"`)
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil || bytes.HasPrefix(line, want) {
			return err
		}
	}
}

// BenchmarkWatch measures the time from the acknowledgement of a strong save to the arrival of the change at each
// watcher. The clients of the watchers run on the same processors. If the change arrives before the acknowledgement,
// the time counts as 0.
func BenchmarkWatch(b *testing.B) {
	addrs := watched(b, 8)
	writer := dial(b, addrs[0])
	for _, watchers := range []int{1, 1000} {
		b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
			clients := make([]*rawClient, watchers)
			for i := range clients {
				clients[i] = openWatch(b, addrs[i%len(addrs)])
			}
			took := make([]time.Duration, 0, b.N*watchers)
			arrived := make([]time.Time, watchers)
			before := processorTime(b)
			b.ResetTimer()
			for i := range b.N {
				var wg sync.WaitGroup
				for w, c := range clients {
					wg.Go(func() {
						if err := c.event("put"); err != nil {
							b.Error(err)
						}
						arrived[w] = time.Now()
					})
				}
				request := bytes.Replace(saveRequest(i, "v", "strong"), []byte("/statestore"), []byte("/watched"), 1)
				if err := writer.do(request, "204"); err != nil {
					b.Fatal(err)
				}
				acknowledged := time.Now()
				wg.Wait()
				for _, at := range arrived {
					took = append(took, max(at.Sub(acknowledged), 0))
				}
			}
			b.StopTimer()
			b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(len(took)), "cpu-µs/event")
			slices.Sort(took)
			for _, percent := range []int{50, 95, 99} {
				b.ReportMetric(took[(len(took)-1)*percent/100].Seconds()*1000, "p"+strconv.Itoa(percent)+"-ms")
			}
		})
	}
}
