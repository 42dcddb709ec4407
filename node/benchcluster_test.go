package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/raftfsm/group"
)

// BenchmarkCluster compares three nodes on this machine with a single node and with baselines. The baseline of reads
// is a constant answer, and the baseline of saves is a plain file. All share one machine, so the ratios show the
// cost of replication, not the throughput of three machines.
func BenchmarkCluster(b *testing.B) {
	for _, partitions := range []int{1, 4} {
		b.Run("partitions="+strconv.Itoa(partitions), func(b *testing.B) {
			c := newBenchCluster(b, partitions)
			for _, where := range c.places(b) {
				for _, level := range []string{"strong", "eventual"} {
					for _, clients := range []int{1, 64, 512} {
						name := fmt.Sprintf("%s/%s/clients=%d", where.name, level, clients)
						b.Run("get/"+name, func(b *testing.B) { c.gets(b, where.node, level, clients) })
						b.Run("save/"+name, func(b *testing.B) { c.saves(b, where.node, level, clients) })
					}
				}
			}
		})
	}
}

const (
	benchKeys  = 1000
	benchBytes = 256
)

// benchCluster is a cluster of three and a cluster of one with the same stores.
type benchCluster struct {
	single *node.Node
	nodes  []*node.Node
	stores []string
	value  string
	floor  string // address that answers reads with a constant
}

// newBenchCluster makes and fills enough stores that every partition has some.
func newBenchCluster(b *testing.B, partitions int) *benchCluster {
	b.Helper()
	c := &benchCluster{stores: []string{"statestore"}, value: strings.Repeat("v", benchBytes)}
	for i := 1; i < 4*partitions && partitions > 1; i++ {
		c.stores = append(c.stores, "store"+strconv.Itoa(i))
	}
	resources := c.declare(b)
	change := func(conf *node.Config) {
		conf.Cluster.Partitions, conf.Cluster.Timing = partitions, group.Timing{}
		conf.Components.Paths = []string{resources}
	}
	lone := config(b)
	change(&lone)
	c.single = open(b, lone)
	c.nodes, _ = threeWith(b, change)
	leads(b, c.nodes)
	c.floor = bareChi(b, `"`+c.value+`"`)
	for _, n := range []*node.Node{c.single, c.nodes[0]} {
		run(b, dialAll(b, n.Addresses().API[0], 8), benchKeys, "204", func(_, i int) []byte {
			return c.save(i-1, "strong")
		})
	}
	return c
}

// declare writes the components of the stores.
func (c *benchCluster) declare(b *testing.B) string {
	b.Helper()
	dir := b.TempDir()
	for _, s := range c.stores {
		text := "apiVersion: quorate.dev/v1alpha1\nkind: Component\nmetadata:\n  name: " + s +
			"\nspec:\n  type: state.raft\n  version: v1\n"
		if err := os.WriteFile(filepath.Join(dir, s+".yaml"), []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

// benchPlace is a node that requests are sent to.
type benchPlace struct {
	name string
	node *node.Node
}

// places returns the leader and a follower. With several partitions it returns any node, because the partitions have
// different leaders.
func (c *benchCluster) places(b *testing.B) []benchPlace {
	b.Helper()
	if len(c.stores) > 1 {
		return []benchPlace{{"any", c.nodes[0]}}
	}
	at := leads(b, c.nodes)
	return []benchPlace{{"leader", c.nodes[at]}, {"follower", c.nodes[(at+1)%3]}}
}

func (c *benchCluster) store(i int) string { return c.stores[i%len(c.stores)] }

func (c *benchCluster) save(i int, level string) []byte {
	body := `[{"key":"k` + strconv.Itoa(i) + `","value":"` + c.value + `","options":{"consistency":"` + level + `"}}]`
	return []byte("POST /v1.0/state/" + c.store(i) + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " +
		strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

func (c *benchCluster) gets(b *testing.B, at *node.Node, level string, clients int) {
	b.Helper()
	requests := make([][]byte, benchKeys)
	for i := range requests {
		requests[i] = getRequest("/v1.0/state/" + c.store(i) + "/k" + strconv.Itoa(i) + "?consistency=" + level)
	}
	request := func(_, i int) []byte { return requests[i%benchKeys] }
	gets := func(addr string) func(n int) time.Duration {
		conns := dialAll(b, addr, clients)
		return func(n int) time.Duration { return run(b, conns, n, "200", request) }
	}
	among(b, gets(at.Addresses().API[0]), gets(c.single.Addresses().API[0]), gets(c.floor))
}

func (c *benchCluster) saves(b *testing.B, at *node.Node, level string, clients int) {
	b.Helper()
	amongSaves(b, at, c.single, clients, func(i int) []byte { return c.save(i%benchKeys, level) })
}

// amongSaves measures concurrent saves at a node, at a single node, and in a plain file, which is the minimum cost.
func amongSaves(b *testing.B, at, single *node.Node, clients int, request func(i int) []byte) {
	b.Helper()
	file, err := os.Create(filepath.Join(b.TempDir(), "floor"))
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	saves := func(n *node.Node) func(n int) time.Duration {
		conns := dialAll(b, n.Addresses().API[0], clients)
		return func(n int) time.Duration {
			return run(b, conns, n, "204", func(_, i int) []byte { return request(i) })
		}
	}
	mine := saves(at)
	var appends, size float64
	among(b,
		func(n int) time.Duration {
			a0, s0 := logCounters(b, at)
			d := mine(n)
			a1, s1 := logCounters(b, at)
			appends, size = a1-a0, s1-s0
			return d
		},
		saves(single),
		func(int) time.Duration { return rawAppends(b, file, int(appends), int(size)) })
}

// among runs a subject, a single node and a baseline alternately and reports the ratios.
func among(b *testing.B, turns ...func(n int) time.Duration) {
	b.Helper()
	took := measure(b, turns...)
	b.ReportMetric(float64((b.N/rounds+1)*rounds)/took[0].Seconds(), "ops/s")
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "x-single")
	b.ReportMetric(took[2].Seconds()/took[0].Seconds(), "x-floor")
}

// measure runs several subjects alternately and returns how long each took for the same number of requests.
func measure(b *testing.B, turns ...func(n int) time.Duration) []time.Duration {
	b.Helper()
	took := make([]time.Duration, len(turns))
	for _, f := range turns { // warm
		f(min(b.N, 200))
	}
	b.ResetTimer()
	n := b.N/rounds + 1
	for range rounds {
		for i, f := range turns {
			took[i] += f(n)
		}
	}
	b.StopTimer()
	return took
}
