package raftfsm

import "testing"

func TestPartitionOf_IsStable(t *testing.T) {
	for key, want := range map[string]uint32{"app||k": 3, "app||other": 3, "app||a||b": 3, "cart||k": 4, "users||k": 1,
		"plain": 0, "": 0} {
		if got := partitionOf("ns/orders", key, 8); got != want {
			t.Errorf("%q is in partition %d, want %d: the function is part of the data format", key, got, want)
		}
	}
}
