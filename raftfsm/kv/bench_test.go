package kv_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// benchKeys is the number of records of 1 KiB from which the read benchmarks choose. All of them fit into the block
// cache.
const benchKeys = 20_000

func benchKey(i int) string { return fmt.Sprintf("shop||customer-%08d", i) }

func benchMachine(b *testing.B) *kv.Machine {
	m, err := kv.Create(kv.Options{Dir: "db", FS: vfs.NewMem(), Fatal: func(err error) { panic(err) }})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := m.Close(); err != nil {
			b.Error(err)
		}
	})
	return m
}

// encodeSets makes one entry of n sets, each a request of its own.
func encodeSets(b *testing.B, stamp uint64, n int, key func(int) string, size int) []byte {
	batch := command.Batch{Stamp: stamp}
	for i := range n {
		batch.Requests = append(batch.Requests, command.Request{
			Kind: command.KindWrite,
			Ops:  []command.Op{{Kind: command.OpSet, Store: "default/orders", Key: key(i), Value: make([]byte, size)}},
		})
	}
	data, err := command.Append(nil, &batch)
	if err != nil {
		b.Fatal(err)
	}
	return data
}

func fill(b *testing.B, m *kv.Machine) {
	for i := 0; i < benchKeys; i += 100 {
		data := encodeSets(b, 1, 100, func(j int) string { return benchKey(i + j) }, 1024)
		if r := m.Apply([]kv.Entry{{Index: m.Applied() + 1, Term: 1, Data: data}}); r[0].Err != nil {
			b.Fatal(r[0].Err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	for _, where := range []string{"memtable", "disk"} {
		m := benchMachine(b)
		fill(b, m)
		if where == "disk" {
			if _, err := m.Flush(); err != nil {
				b.Fatal(err)
			}
		}
		keys := make([]string, benchKeys)
		for i := range keys {
			keys[i] = benchKey(rand.IntN(benchKeys))
			if _, err := m.Get("default/orders", keys[i], 0); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(where+"/any", func(b *testing.B) { benchGet(b, m, keys) })
		b.Run(where+"/hot", func(b *testing.B) { benchGet(b, m, keys[:100]) })
		b.Run(where+"/absent", func(b *testing.B) {
			absent := make([]string, 1000)
			for i := range absent {
				absent[i] = benchKey(i) + "x"
			}
			benchGet(b, m, absent)
		})
	}
}

func benchGet(b *testing.B, m *kv.Machine, keys []string) {
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := m.Get("default/orders", keys[i%len(keys)], 0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1, 64, 512} {
		for _, fresh := range []bool{true, false} {
			b.Run(fmt.Sprintf("sets=%d/new=%v", n, fresh), func(b *testing.B) {
				m := benchMachine(b)
				fill(b, m)
				var entries [64][]byte
				for e := range entries {
					entries[e] = encodeSets(b, 1, n, func(int) string {
						if fresh {
							return fmt.Sprintf("shop||%016x", rand.Uint64())
						}
						return benchKey(rand.IntN(benchKeys))
					}, 256)
				}
				b.ReportAllocs()
				b.ResetTimer()
				for i := 0; b.Loop(); i++ {
					r := m.Apply([]kv.Entry{{Index: m.Applied() + 1, Term: 1, Data: entries[i%len(entries)]}})
					if r[0].Err != nil {
						b.Fatal(r[0].Err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/set")
			})
		}
	}
}

// BenchmarkNextDue measures NextDue while nothing changes. A leader calls it periodically, even if it is idle.
func BenchmarkNextDue(b *testing.B) {
	m := benchMachine(b)
	fill(b, m)
	b.ReportAllocs()
	for b.Loop() {
		m.NextDue()
	}
}
