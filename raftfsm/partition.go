package raftfsm

import (
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/topics"
	"github.com/quorate/quorate/raftfsm/workflows"
)

// partitionOf returns the group of a stored key. All keys with the same store and prefix are in the same group. The
// prefix is the part before the first "||", for example "app1" for the key "app1||x", or empty if the key has no "||".
// Usually it is the id of an application (see the setting keyPrefix), so that all keys of an application are in one
// group.
//
// The internal stores of due work, topics and workflows have their own rules. partitionOf is part of the data format
// and must never change.
func partitionOf(store, key string, partitions uint32) uint32 {
	if partitions == 1 {
		return 0
	}
	if store == kv.DueStore {
		// A key of due work begins with the store and the key prefix of its home (see package due). Due work is in the
		// group of the keys with that prefix.
		if home, rest, found := strings.Cut(key, "\x00"); found {
			return partitionOf(home, rest, partitions)
		}
	}
	if store == kv.TopicStore {
		return topics.GroupOf(key) % partitions
	}
	if store == kv.WorkflowStore {
		return workflows.PartitionOf(key, partitions)
	}
	h := xxhash.New()
	_, _ = h.WriteString(store)
	_, _ = h.Write([]byte{0})
	_, _ = h.WriteString(state.PrefixOf(key))
	return uint32(h.Sum64() % uint64(partitions))
}

// listPartition returns the group that has all keys with the given prefix. It returns fault.Invalid if they may be
// in several groups.
func (s *Store) listPartition(prefix string, n uint32) (uint32, error) {
	if n > 1 && !strings.Contains(prefix, "||") {
		return 0, &fault.Error{Code: fault.Invalid, Op: "raftfsm.List", Key: prefix,
			Msg:  "keys with this prefix may lie in several partitions",
			Hint: "list the keys of one application (key prefix) only"}
	}
	return partitionOf(s.id, prefix, n), nil
}

// onePartition returns the group of the keys of all items. It returns fault.Invalid if the keys are in different
// groups.
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
