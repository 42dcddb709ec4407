package kv

import (
	"bytes"
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// readCache caches database records by their data key, so that frequent reads of a key do not go to the database each
// time. It is safe for concurrent use by readers and the goroutine that applies entries.
//
// Invariant: while no batch is being written, a cached record equals the record in the database. Two rules ensure this:
//
//   - Before the writer writes a batch, it removes the keys of the batch from the cache.
//   - put adds a record only if no batch was being written at any moment between the calls of get and put.
//
// So after one reader has seen a change, no reader that starts later gets the earlier record.
type readCache struct {
	batches atomic.Uint64 // counts the begins and the ends of batches; odd while a batch is being written
	seed    maphash.Seed
	shards  [readShards]readShard
}

// readShard has two maps with the same size limit, like the type recent. The records in the maps are never modified.
type readShard struct {
	mu         sync.Mutex // guards the fields below
	young, old map[string][]byte
	bytes      int // approximate size of young
	limit      int // in bytes; 0 disables the shard
	misses     uint
}

const (
	readShards = 16
	// largestCached is the maximum size in bytes of a cached record.
	largestCached = 4<<10 + 256
	// missesPerRecord is how many cache misses must happen for each record that is added. It keeps reads of many
	// different keys, once each, from filling the cache. A key that is read often is still added soon.
	missesPerRecord = 4
)

// newReadCache returns a cache that needs about size bytes.
func newReadCache(size uint64) *readCache {
	c := &readCache{seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].limit = int(size / (2 * readShards)) //nolint:gosec // a part of a memtable
	}
	return c
}

func (c *readCache) shard(key []byte) *readShard {
	return &c.shards[maphash.Bytes(c.seed, key)%readShards]
}

// get returns the cached record of a key, or nil if it is not cached. In this case, the caller may read the record from
// the database and pass it to put, together with the batch counter that get returned.
func (c *readCache) get(key []byte) (raw []byte, batches uint64) {
	batches = c.batches.Load()
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if raw = s.young[string(key)]; raw != nil {
		return raw, batches
	}
	if raw = s.old[string(key)]; raw != nil {
		delete(s.old, string(key))
		s.add(string(key), raw)
	}
	return raw, batches
}

// put offers the cache a record that was read from the database after a miss. batches is the counter that get returned
// before the read. put copies the record. It adds only one in missesPerRecord of the records offered, and none in these
// cases:
//
//   - A batch was being written when get was called, or has begun since. The record may then be outdated.
//   - The record is larger than largestCached.
func (c *readCache) put(key, raw []byte, batches uint64) {
	if batches%2 == 1 || len(raw) > largestCached {
		return
	}
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.misses++
	if s.limit == 0 || s.misses%missesPerRecord != 0 || c.batches.Load() != batches {
		return
	}
	s.add(string(key), bytes.Clone(raw))
}

// add adds a record to the young map. The caller holds the mutex.
func (s *readShard) add(key string, raw []byte) {
	size := keptSize + len(key) + len(raw)
	if s.bytes += size; s.young == nil || s.bytes > s.limit {
		s.young, s.old, s.bytes = make(map[string][]byte), s.young, size
	}
	s.young[key] = raw
}

// begin stops put from adding records until end is called. For each batch, the writer first calls begin. Then it calls
// remove for each key that the batch changes, or calls clear. Finally it writes the batch and calls end.
func (c *readCache) begin() { c.batches.Add(1) }

// end lets put add records again. Call it when the batch is in the database, but not if the write has failed.
func (c *readCache) end() { c.batches.Add(1) }

// remove removes the record of a key.
func (c *readCache) remove(key []byte) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.young, string(key))
	delete(s.old, string(key))
}

// clear removes all records.
func (c *readCache) clear() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.young, s.old, s.bytes = nil, nil, 0
		s.mu.Unlock()
	}
}
