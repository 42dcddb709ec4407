package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
)

// BenchmarkSoak saves at 80 % of the highest rate on one node and on three, with 64 clients. It runs for a minute, or
// for the duration in QUORATE_SOAK. Each client sends at fixed times, and the latency of a save begins at its fixed
// time. So a pause counts for every save that had to wait for it.
//
// A pause is a time of more than 250 ms without an answer. Two probes show what has caused it. One probe syncs a small
// file on the same disk again and again, and the other one only sleeps. If the first probe was slow too, the disk was
// the cause. If the second one was slow too, the machine had no free processor. Otherwise the node was the cause.
func BenchmarkSoak(b *testing.B) {
	during := time.Minute
	if s := os.Getenv("QUORATE_SOAK"); s != "" {
		var err error
		if during, err = time.ParseDuration(s); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("one-node", func(b *testing.B) { soak(b, []*node.Node{open(b, config(b))}, during) })
	b.Run("three-nodes", func(b *testing.B) {
		nodes, _ := threeWith(b, func(c *node.Config) { c.Cluster.Timing = config(b).Cluster.Timing })
		leads(b, nodes)
		soak(b, nodes, during)
	})
}

const (
	soakClients = 64
	soakLoad    = 0.8
	longPause   = 250 * time.Millisecond
)

func soak(b *testing.B, nodes []*node.Node, duration time.Duration) {
	b.Helper()
	clients := make([]*rawClient, soakClients)
	for i := range clients {
		clients[i] = dial(b, nodes[i%len(nodes)].Addresses().API[0])
	}
	value := strings.Repeat("v", benchBytes)
	request := func(client, i int) []byte { return saveRequest((client*7+i)%benchKeys, value, "strong") }
	const warm = 20 * soakClients
	run(b, clients, warm, "204", request)
	n := int(10 * warm / run(b, clients, warm, "204", request).Seconds())
	peak := float64(n) / run(b, clients, n, "204", request).Seconds() // over ten seconds, so that it includes pauses
	disk, machine := newProbe(syncs(b)), newProbe(naps)
	b.ResetTimer()
	pause := time.Duration(soakClients / (peak * soakLoad) * float64(time.Second))
	took, answers := paced(b, clients, pause, duration, request)
	b.StopTimer()
	disk.end()
	machine.end()
	slices.Sort(took)
	b.ReportMetric(float64(len(took))/duration.Seconds(), "saves/s")
	b.ReportMetric(peak, "peak-saves/s")
	for name, part := range map[string]float64{"p50-ms": .5, "p99-ms": .99, "p99.9-ms": .999, "max-ms": 1} {
		at := min(int(part*float64(len(took))), len(took)-1)
		b.ReportMetric(float64(took[at].Microseconds())/1000, name)
	}
	causes := map[string]int{"disk": 0, "machine": 0, "node": 0}
	for _, p := range pauses(answers) {
		cause := "node"
		switch {
		case machine.stood(p):
			cause = "machine"
		case disk.stood(p):
			cause = "disk"
		}
		causes[cause]++
		fmt.Printf("a pause of %v: %s\n", p.to.Sub(p.from).Round(time.Millisecond), cause)
	}
	for cause, count := range causes {
		b.ReportMetric(float64(count), "pauses-"+cause)
	}
}

// paced has every client send a request each interval. It returns all latencies, from the time at which a request had
// to be sent, and the times of all answers.
func paced(b *testing.B, clients []*rawClient, interval, duration time.Duration, request func(client, i int) []byte) (
	took []time.Duration, answers []time.Time) {
	b.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	begin := time.Now()
	for id, c := range clients {
		wg.Go(func() {
			var own []time.Duration
			var at []time.Time
			due := begin.Add(interval * time.Duration(id) / time.Duration(len(clients)))
			for i := 0; due.Sub(begin) < duration; i++ {
				<-time.After(time.Until(due)) // an open loop: requests begin at fixed times
				if err := c.do(request(id, i), "204"); err != nil {
					b.Error(err)
					return
				}
				now := time.Now()
				own, at = append(own, now.Sub(due)), append(at, now)
				due = due.Add(interval)
			}
			mu.Lock()
			took, answers = append(took, own...), append(answers, at...)
			mu.Unlock()
		})
	}
	wg.Wait()
	return took, answers
}

// period is a time of a pause, or a time in which a probe was slow.
type period struct{ from, to time.Time }

// pauses returns the times of more than longPause without an answer.
func pauses(answers []time.Time) (out []period) {
	slices.SortFunc(answers, time.Time.Compare)
	for i := 1; i < len(answers); i++ {
		if answers[i].Sub(answers[i-1]) > longPause {
			out = append(out, period{answers[i-1], answers[i]})
		}
	}
	return out
}

// probe does the same small work again and again. slow has the times in which the work took long.
type probe struct {
	stop atomic.Bool
	done chan struct{}
	slow []period
}

func newProbe(work func()) *probe {
	p := &probe{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		for !p.stop.Load() {
			from := time.Now()
			work()
			if to := time.Now(); to.Sub(from) > longPause/2 {
				p.slow = append(p.slow, period{from, to})
			}
		}
	}()
	return p
}

func (p *probe) end() {
	p.stop.Store(true)
	<-p.done
}

// stood reports whether the work took long during q.
func (p *probe) stood(q period) bool {
	return slices.ContainsFunc(p.slow, func(s period) bool { return s.from.Before(q.to) && s.to.After(q.from) })
}

// naps waits for a moment, to measure how much longer the machine takes.
func naps() { <-time.After(5 * time.Millisecond) }

// syncs returns a function that appends to a file and syncs it.
func syncs(b *testing.B) func() {
	b.Helper()
	file, err := os.Create(filepath.Join(b.TempDir(), "probe"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = file.Close() })
	return func() {
		_, err := file.WriteAt(make([]byte, 512), 0)
		if err == nil {
			err = file.Sync()
		}
		if err != nil {
			b.Error(err)
		}
		naps()
	}
}
