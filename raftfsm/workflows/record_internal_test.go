package workflows

import (
	"reflect"
	"strings"
	"testing"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
)

func sampleHead() head {
	return head{nonce: 7, birth: 9, status: 3, name: "order", version: "v1", execution: "e2", creation: "e1",
		generation: 2, chunks: 3, events: 11, bytes: 900, low: middle - 1, high: middle + 4, startAt: 5, raised: 6,
		created: 1, started: 2, updated: 3, completed: 4,
		parentApp: "a", parentID: "p", parentExecution: "pe", parentTask: 8,
		custom:    "half",
		hasCustom: true, unique: true, recent: []uint64{1, 1 << 63}}
}

func TestHead_IsReadAsStored(t *testing.T) {
	want := sampleHead()
	want.revision = 42
	stored := want.encode()
	got, ok := readHead(stored, 42)
	if !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %t, want %+v", got, ok, want)
	}
	for n := range stored {
		if _, ok := readHead(stored[:n], 42); ok {
			t.Errorf("%d of %d bytes are a head", n, len(stored))
		}
	}
}

func TestHead_RemembersTheNewestKeys(t *testing.T) {
	var h head
	for n := range uint64(maxRecent + 5) {
		before := h
		h.remember(n + 1)
		if len(before.recent) > 0 && before.recent[len(before.recent)-1] != n {
			t.Fatal("an earlier head has changed")
		}
	}
	if len(h.recent) != maxRecent || h.recent[0] != 6 || h.recent[maxRecent-1] != maxRecent+5 {
		t.Errorf("remembered %v", h.recent)
	}
}

func TestKeys_NamesDoNotMix(t *testing.T) {
	a, b := Ref{"shop", "a"}, Ref{"shop", "ab"}
	if strings.HasPrefix(b.chunkKey(1), a.key(tableChunk, "")) {
		t.Error("the keys of an instance begin with those of another one")
	}
	r, table, rest, ok := instanceOf(a.taskKey(3, 1<<40))
	if !ok || r != a || table != tableTask || be32(rest) != 3 || number(rest) != 1<<40 {
		t.Errorf("a key of an activity is split into %v, %c, %q, %t", r, table, rest, ok)
	}
	at, r, kind, id, ok := splitDue(a.dueKey(77, dueTimer, -1))
	if !ok || at != 77 || r != a || kind != dueTimer || id != -1 {
		t.Errorf("a key of a timer is split into %d, %v, %d, %d, %t", at, r, kind, id, ok)
	}
}

// The buckets of an application are spread evenly, and every key of an instance is in one group.
func TestPartitionOf_SpreadsBuckets(t *testing.T) {
	counts := make([]int, 4)
	for bucket := range uint16(buckets) {
		counts[PartitionOf(place{"shop", bucket}.prefix(), 4)]++
	}
	for gid, n := range counts {
		if n != buckets/4 {
			t.Errorf("group %d has %d buckets", gid, n)
		}
	}
	r := Ref{"shop", "order-1"}
	for _, key := range []string{r.key(tableHead, ""), r.chunkKey(0), r.inboxKey(1), r.taskKey(1, 2), r.listKey(3),
		r.dueKey(4, dueTimer, 5), r.outboxKey(6, 7), r.Prefix()} {
		if PartitionOf(key, 7) != PartitionOf(r.Prefix(), 7) {
			t.Errorf("key %q is in another group than its instance", key)
		}
	}
	if got := PartitionOf(sessionPrefix(3)+"s", 7); got != 3 {
		t.Errorf("a session of group 3 is in group %d", got)
	}
	// The buckets are part of the format. Other values would make instances of existing clusters unreachable.
	for id, want := range map[string]uint16{"order-1": 45, "x": 35, "2f6c": 55} {
		if got := (Ref{"shop", id}).bucket(); got != want {
			t.Errorf("instance %s is in bucket %d, want %d", id, got, want)
		}
	}
}

func TestRef_IsBounded(t *testing.T) {
	for what, r := range map[string]Ref{"no app": {"", "x"}, "no id": {"a", ""}, "NUL": {"a", "x\x00"},
		"long": {"a", strings.Repeat("x", maxName+1)}} {
		if err := r.check("test"); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.TooLarge) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := (Ref{"a", strings.Repeat("ü", maxName/2)}).check("test"); err != nil {
		t.Errorf("the longest id: %v", err)
	}
}

// FuzzRecords reads arbitrary bytes as every kind of record. What can be read is written with the same content.
func FuzzRecords(f *testing.F) {
	h := sampleHead()
	f.Add(h.encode())
	f.Add(encodeEvents([][]byte{{1}, nil, {2, 3}}))
	f.Add((&taskRecord{app: "a", exec: "e", event: []byte{1}}).encode())
	f.Add((&dueRecord{generation: 3, execution: "e", event: []byte{1}}).encode())
	f.Add((&outRecord{to: Ref{"a", "i"}, execution: "e", key: "k", event: []byte{1}}).encode())
	f.Add((&listRecord{status: 1, name: "n"}).encode())
	f.Add([]byte(Ref{"shop", "x"}.dueKey(1, dueStart, 2)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, ok := readHead(b, 1); ok {
			if again, ok := readHead(h.encode(), 1); !ok || !reflect.DeepEqual(again, h) {
				t.Errorf("head %+v became %+v", h, again)
			}
		}
		if e, ok := readEvents(b); ok {
			if again, ok := readEvents(encodeEvents(e)); !ok || len(again) != len(e) {
				t.Errorf("events %v became %v", e, again)
			}
		}
		if r, ok := readTask(b); ok {
			if again, ok := readTask(r.encode()); !ok || again.app != r.app || string(again.event) != string(r.event) {
				t.Errorf("task %+v became %+v", r, again)
			}
		}
		if r, ok := readDue(b); ok {
			if again, ok := readDue(r.encode()); !ok || again.generation != r.generation {
				t.Errorf("due %+v became %+v", r, again)
			}
		}
		if r, ok := readOut(b); ok {
			if again, ok := readOut(r.encode()); !ok || again.to != r.to || again.key != r.key {
				t.Errorf("message %+v became %+v", r, again)
			}
		}
		if r, ok := readList(b); ok {
			if again, ok := readList(r.encode()); !ok || again != r {
				t.Errorf("list %+v became %+v", r, again)
			}
		}
		if at, r, kind, id, ok := splitDue(string(b)); ok && r.bucket() == mustPlace(b).bucket &&
			r.dueKey(at, kind, id) != string(b) {
			t.Errorf("key %q is split into %d, %v, %d, %d", b, at, r, kind, id)
		}
		_ = PartitionOf(string(b), 3)
	})
}

func mustPlace(b []byte) place {
	p, _, _, _ := splitKey(string(b))
	return p
}

// FuzzCalls reads arbitrary bytes as calls and answers between nodes.
func FuzzCalls(f *testing.F) {
	start := turn.Start(&protos.CreateInstanceRequest{InstanceId: "i", Name: "n"}, "e", zero)
	f.Add(startCall(Ref{"a", "i"}, &creation{event: start, unique: true, fork: &turn.Fork{ID: "i",
		Events: []*protos.HistoryEvent{start}, Tasks: []turn.Task{{ID: 1, App: "b", Event: start}},
		Timers:   []turn.Timer{{ID: 2, Event: start}},
		Messages: []turn.Message{{Key: "k", App: "b", Instance: "j", Event: start}}}}).append())
	f.Add((&Join{Session: "s", Previous: "p", Streams: map[uint64]string{1: "a"},
		Held: []Held{{Stream: 1, App: "a", ID: "i", Task: 2, Birth: 3, Attempt: 4}}}).append().append())
	f.Add((&call{what: callTask, session: "s", ref: Ref{"a", "i"}, a: 1, b: 2, c: 3, d: 4}).append())
	f.Add((&call{what: callList, ref: Ref{App: "a"}, data: appendFilter(&workflow.Filter{Name: "n",
		Statuses: []protos.OrchestrationStatus{1}})}).append())
	f.Add(appendAnswer([]byte{1}, &answer{number: 3, items: []*item{{kind: itemTurn, ref: Ref{"a", "i"},
		past: [][]byte{{1}}, fresh: [][]byte{{2}}}, {kind: itemTask, ref: Ref{"a", "i"}, fresh: [][]byte{{2}}}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := readCall(&lenprefix.Reader{Rest: b}); err == nil {
			if again, err := readCall(&lenprefix.Reader{Rest: c.append()}); err != nil || again.ref != c.ref ||
				again.d != c.d {
				t.Errorf("call %+v became %+v, %v", c, again, err)
			}
			_, _ = readJoin(&c)
			_, _ = readFilter(c.data)
			if n, err := readCreation(&c); err == nil {
				again := startCall(c.ref, n)
				if _, err := readCreation(again); err != nil {
					t.Errorf("creation %+v cannot be read again: %v", n, err)
				}
			}
		}
		if known, a, err := readAnswer(b); err == nil && known {
			for _, i := range a.items {
				i.from = 0
			}
			if _, again, err := readAnswer(appendAnswer([]byte{1}, &a)); err != nil ||
				len(again.items) != len(a.items) {
				t.Errorf("answer %+v became %+v, %v", a, again, err)
			}
		}
		_, _, _ = readListAnswer(b)
	})
}
