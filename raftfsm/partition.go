package raftfsm

import (
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/quorate/quorate/internal/fault"
)

// partitionOf maps a stored key to its group. Everything before the first "||" decides
// (by default that is the application id), so all that one application may change in one
// transaction lives in one group. A key without a prefix counts as an empty one. The
// function is part of the data format: it never changes.
func partitionOf(store, key string, partitions uint32) uint32 {
	if partitions == 1 {
		return 0
	}
	h := xxhash.New()
	_, _ = h.WriteString(store)
	_, _ = h.Write([]byte{0})
	_, _ = h.WriteString(prefixOf(key))
	return uint32(h.Sum64() % uint64(partitions))
}

// prefixOf is the part of a stored key before the first "||", by default the application.
func prefixOf(key string) string {
	prefix, _, found := strings.Cut(key, "||")
	if !found {
		return ""
	}
	return prefix
}

// listPartition is the group that holds every key with the prefix; invalid if several may.
func (s *Store) listPartition(prefix string, n uint32) (uint32, error) {
	if n > 1 && !strings.Contains(prefix, "||") {
		return 0, &fault.Error{Code: fault.Invalid, Op: "raftfsm.List", Key: prefix, Msg: "keys with this prefix may lie in several partitions",
			Hint: "list the keys of one application (key prefix) only"}
	}
	return partitionOf(s.id, prefix, n), nil
}

// onePartition is the group of all keys; invalid if they lie in different ones.
func onePartition[T any](store string, items []T, key func(*T) string, partitions uint32) (uint32, error) {
	if len(items) == 0 {
		return 0, nil
	}
	first := partitionOf(store, key(&items[0]), partitions)
	for i := range items[1:] {
		if k := key(&items[i+1]); partitionOf(store, k, partitions) != first {
			return 0, &fault.Error{Code: fault.Invalid, Op: "raftfsm.partition", Key: k,
				Msg:  "the keys of one request lie in different partitions",
				Hint: "one request may change keys of one application (key prefix) only"}
		}
	}
	return first, nil
}
