package kv

import (
	"bytes"
	"strconv"
	"testing"
)

func TestReadCache_StaysWithinItsLimit(t *testing.T) {
	t.Parallel()
	const size = 256 << 10
	c := newReadCache(size)
	raw := bytes.Repeat([]byte("r"), 1000)
	for i := range 100_000 {
		key := []byte(strconv.Itoa(i / missesPerRecord))
		if _, batches := c.get(key); batches != 0 {
			t.Fatal(batches)
		}
		c.put(key, raw, 0)
	}
	bytes, records := 0, 0
	for i := range c.shards {
		for _, m := range []map[string][]byte{c.shards[i].young, c.shards[i].old} {
			for k, v := range m {
				bytes += keptSize + len(k) + len(v)
				records++
			}
		}
	}
	if records < 50 || bytes > size {
		t.Fatalf("%d records with %d bytes, the limit is %d", records, bytes, size)
	}
}

func TestReadCache_RefusesRecordsReadBeforeABatchEnds(t *testing.T) {
	t.Parallel()
	c := newReadCache(1 << 20)
	key, put := []byte("k"), func(batches uint64) []byte {
		for range missesPerRecord {
			c.put([]byte("k"), []byte("old"), batches)
		}
		raw, _ := c.get([]byte("k"))
		return raw
	}
	_, before := c.get(key)
	c.begin()
	c.remove(key)
	_, during := c.get(key)
	if put(before) != nil || put(during) != nil {
		t.Fatal("a record was added while a batch was being written")
	}
	c.end()
	if put(before) != nil || put(during) != nil {
		t.Fatal("a record was added that was read before the batch was in the database")
	}
	if _, after := c.get(key); string(put(after)) != "old" {
		t.Fatal("no record was added after the batch")
	}
	c.put(key, make([]byte, largestCached+1), c.batches.Load())
	if c.remove(key); put(1) != nil {
		t.Fatal("the record was not removed")
	}
}
