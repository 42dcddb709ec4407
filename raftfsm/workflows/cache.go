package workflows

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/quorate/quorate/raftfsm/command"
)

// Cache counts the memory of the instances that the Keepers of one server have loaded. While the Cache is full, the
// Keepers drop idle instances. A Keeper reads a dropped instance again when the instance is needed.
type Cache struct {
	limit int64
	used  atomic.Int64
}

// NewCache returns a Cache with the given size in bytes; 0 = 64 MiB.
func NewCache(bytes int64) *Cache {
	return &Cache{limit: cmp.Or(bytes, defaultCache)}
}

func (c *Cache) add(n int)  { c.used.Add(int64(n)) }
func (c *Cache) full() bool { return c.used.Load() > c.limit }

// random returns a random number that is not 0.
func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:]) | 1
}

// hash returns a hash of a key. The hash is never 0.
func hash(key string) uint64 { return max(xxhash.Sum64String(key), 1) }

func be32(s string) uint32 { return binary.BigEndian.Uint32([]byte(s[:4])) }

func ops(list ...command.Op) []command.Op { return list }

func compareRefs(a, b Ref) int { return cmp.Or(cmp.Compare(a.App, b.App), cmp.Compare(a.ID, b.ID)) }

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.app, b.app), cmp.Compare(a.bucket, b.bucket))
}
