package kv_test

import (
	"encoding/binary"
	"testing"

	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

func appended(value string, change ...func(*command.Op)) command.Op {
	o := command.Op{Kind: command.OpAppend, Store: kv.TopicStore, Key: "m", Value: []byte(value)}
	for _, f := range change {
		f(&o)
	}
	return o
}

// The key of an append ends with its revision, and the stored value begins with cluster time. So records of one prefix
// are in the order of their entries, also when requests share an entry.
func TestAppend_KeysHaveOrderOfLog(t *testing.T) {
	r := newRig(t)
	first := r.one(10, write(appended("a"), appended("b")))
	r.one(10, write(set("other", "1")))
	second := r.one(20, write(appended("c", ttl(5)), set("x", "1", ifAbsent), appended("d")))
	refused := r.one(20, write(appended("lost"), set("x", "2", ifAbsent)))
	if refused.Outcome != kv.Conflict {
		t.Fatalf("the request was %v", refused.Outcome)
	}
	want := []struct {
		revision, clock uint64
		value           string
	}{{first.Revisions[0], 10, "a"}, {first.Revisions[1], 10, "b"}, {second.Revisions[0], 20, "c"},
		{second.Revisions[2], 20, "d"}}
	found, more, err := r.Records(kv.TopicStore, "m", "", 10, 1<<20, 0)
	testutil.Must(t, err)
	if len(found) != len(want) || more {
		t.Fatalf("there are %d records, want %d", len(found), len(want))
	}
	for i, w := range want {
		if key := string(binary.BigEndian.AppendUint64([]byte("m"), w.revision)); found[i].Key != key ||
			binary.BigEndian.Uint64(found[i].Value) != w.clock || string(found[i].Value[8:]) != w.value {
			t.Errorf("record %d is %q with %q, want %+v", i, found[i].Key, found[i].Value, w)
		}
	}
	for limit, bytes := range map[int]int{2: 1 << 20, 10: 10} {
		if found, more, err = r.Records(kv.TopicStore, "m", "", limit, bytes, 0); len(found) != 2 || !more {
			t.Errorf("%d records with limit %d and %d bytes, %t, %v", len(found), limit, bytes, more, err)
		}
	}
	if found, _, _ = r.Records(kv.TopicStore, "m", "", 10, 1<<20, 26); len(found) != 3 {
		t.Errorf("%d records after the end of a ttl", len(found))
	}
	r.check()
}
