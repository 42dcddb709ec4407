package raftfsm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/backup"
)

func save(t testing.TB, h *raftfsm.Host) []byte {
	t.Helper()
	var out bytes.Buffer
	if _, err := h.Backup(within(t, 2*time.Minute), backup.Header{Created: time.Now(), Cluster: "test"},
		&out); err != nil {
		t.Fatalf("backup: %v", err)
	}
	return out.Bytes()
}

func restore(t testing.TB, h *raftfsm.Host, file []byte) {
	t.Helper()
	if _, err := h.Restore(within(t, 2*time.Minute), bytes.NewReader(file)); err != nil {
		t.Fatalf("restore: %v", err)
	}
}

// content reads n keys of each of four applications, which are in several partitions. It returns their values and
// ETags.
func content(t testing.TB, s state.Store, n int) (values, etags map[string]string) {
	t.Helper()
	values, etags = map[string]string{}, map[string]string{}
	for app := range 4 {
		for i := range n {
			k := fmt.Sprintf("app%d||%d", app, i)
			if it := get(t, s, k, state.Strong); it.ETag != "" {
				values[k], etags[k] = string(it.Value), it.ETag
			}
		}
	}
	return values, etags
}

// sameState waits until all hosts have the same state.
func sameState(t testing.TB, hosts ...*raftfsm.Host) {
	t.Helper()
	eventually(t, func() error {
		for g := range hosts[0].Groups() {
			index, hash := hosts[0].Groups()[g].Machine().Hash()
			for _, h := range hosts[1:] {
				if i, s := h.Groups()[g].Machine().Hash(); i != index || s != hash {
					return fmt.Errorf("group %d: %d %x at %s, %d %x at %s", g, index, hash, hosts[0].Identity().Node, i,
						s, h.Identity().Node)
				}
			}
		}
		return nil
	})
}

func TestRestore_EveryReplicaHasBackupState(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions = 3 })
	lead := c.leader()
	others := c.others(lead)
	given := map[string]bool{}
	note := func(tags map[string]string) {
		for k, tag := range tags {
			given[k[:4]+tag] = true
		}
	}
	for app := range 4 {
		for i := range 10 {
			set(t, lead.Store("", "s"), fmt.Sprintf("app%d||%d", app, i), fmt.Sprint("v", i), state.Strong)
		}
	}
	want, tags := content(t, lead.Store("", "s"), 12)
	note(tags)
	file := save(t, others[0]) // any server can write a backup

	for app := range 4 {
		set(t, lead.Store("", "s"), fmt.Sprintf("app%d||0", app), "changed", state.Strong)
		set(t, lead.Store("", "s"), fmt.Sprintf("app%d||11", app), "added", state.Strong)
		if _, err := lead.Store("", "s").Delete(t.Context(),
			state.DeleteRequest{Key: fmt.Sprintf("app%d||1", app)}); err != nil {
			t.Fatal(err)
		}
	}
	_, tags = content(t, lead.Store("", "s"), 12)
	note(tags)
	restore(t, others[1], file)
	for _, h := range []*raftfsm.Host{lead, others[0], others[1]} {
		got, tags := content(t, h.Store("", "s"), 12)
		if len(got) != len(want) {
			t.Errorf("%d keys, want %d", len(got), len(want))
		}
		for k := range want {
			if got[k] != want[k] {
				t.Errorf("%s = %q, want %q", k, got[k], want[k])
			}
			if given[k[:4]+tags[k]] {
				t.Errorf("%s has ETag %s, which was used before", k, tags[k])
			}
		}
	}
	sameState(t, lead, others[0], others[1])
	set(t, others[0].Store("", "s"), "app0||0", "goes on", state.Strong)

	// Restores into a new cluster of one server, which then gets more replicas.
	fresh := startCluster(t, 1, func(o *raftfsm.Options) { o.Partitions = 3 })
	one := fresh.leader()
	restore(t, one, file)
	got, _ := content(t, one.Store("", "s"), 12)
	for k := range want {
		if got[k] != want[k] {
			t.Errorf("new cluster: %s = %q, want %q", k, got[k], want[k])
		}
	}
	if err := one.Groups()[0].Snapshot(); err != nil {
		t.Fatal(err)
	}
	two := fresh.add(2, func(o *raftfsm.Options) { o.Partitions = 3 })
	must(t, two.Adopt(one.Identity().Cluster, 0))
	for _, g := range one.Groups() {
		must(t, g.AddNonvoter(t.Context(), raft.ServerID(two.Identity().Server), 0))
	}
	sameState(t, one, two)
}

func TestRestore_FailureChangesNothing(t *testing.T) {
	t.Parallel()
	h := open(t, func() raftfsm.Options { o := options(t, t.TempDir()); o.Partitions = 2; return o }())
	s := h.Store("", "s")
	for app := range 4 {
		set(t, s, fmt.Sprintf("app%d||0", app), "old", state.Strong)
	}
	file := save(t, h)
	for app := range 4 {
		set(t, s, fmt.Sprintf("app%d||0", app), "new", state.Strong)
	}
	flipped := bytes.Clone(file)
	flipped[len(flipped)-20] ^= 1
	other := open(t, options(t, t.TempDir()))
	for name, c := range map[string]struct {
		r    io.Reader
		code fault.Code
	}{
		"cut off":                     {bytes.NewReader(file[:len(file)-1]), fault.Corrupt},
		"damaged near its end":        {bytes.NewReader(flipped), fault.Corrupt},
		"no backup":                   {bytes.NewReader([]byte("nothing of the kind")), fault.Invalid},
		"of other partitions":         {bytes.NewReader(save(t, other)), fault.Invalid},
		"whose source breaks":         {io.MultiReader(bytes.NewReader(file[:len(file)-9]), broken{}), fault.Internal},
		"cut off in the first group":  {bytes.NewReader(file[:len(file)/2]), fault.Corrupt},
		"cut off before any data":     {bytes.NewReader(file[:30]), fault.Corrupt},
		"cut off, for the last time":  {bytes.NewReader(file[:len(file)-40]), fault.Corrupt},
		"of another program entirely": {bytes.NewReader(nil), fault.Invalid},
	} {
		_, err := h.Restore(within(t, 2*time.Minute), c.r)
		if !fault.Is(err, c.code) {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
		for app := range 4 {
			if it := get(t, s, fmt.Sprintf("app%d||0", app), state.Strong); string(it.Value) != "new" {
				t.Errorf("after one %s: app%d reads %q", name, app, it.Value)
			}
		}
	}
	restore(t, h, file) // data staged earlier does not block it
	if it := get(t, s, "app1||0", state.Strong); string(it.Value) != "old" {
		t.Errorf("after the restore: %q", it.Value)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the wire is cut") }

// A session from before the restore gets one answer that reports the restore. Later answers have all
// guarantees.
func TestRestore_IsReportedToEarlierSessions(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	s := h.Store("", "s")
	set(t, s, "k", "backup", state.Strong)
	file := save(t, h)
	w := set(t, s, "k", "mine", state.Strong)
	restore(t, h, file)
	read := func(session string) state.Item {
		t.Helper()
		it, err := s.Get(t.Context(), state.GetRequest{Key: "k", ReadOptions: state.ReadOptions{Session: session}})
		if err != nil {
			t.Fatal(err)
		}
		return it
	}
	first := read(w.Session)
	if string(first.Value) != "backup" || first.Level != state.Stale {
		t.Errorf("the session from before the restore read %q at %s", first.Value, first.Level)
	}
	if next := read(first.Session); next.Level == state.Stale {
		t.Errorf("the next read of the session is at %s", next.Level)
	}
	if next := read(""); next.Level == state.Stale {
		t.Errorf("a new session reads at %s", next.Level)
	}
}

func TestRestore_ConcurrentWritesAreBeforeOrAfter(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	lead := c.leader()
	set(t, lead.Store("", "s"), "marker", "restored", state.Strong)
	file := save(t, lead)
	set(t, lead.Store("", "s"), "marker", "live", state.Strong)
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	acked := map[string]int{} // key -> number that was acknowledged last
	var writers sync.WaitGroup
	for i, h := range append(c.others(lead), lead) {
		writers.Go(func() {
			level := state.Consistency(state.Strong)
			if i == 1 {
				level = state.Eventual
			}
			for n := 1; ctx.Err() == nil; n++ {
				key := fmt.Sprint("w", i)
				_, err := h.Store("", "s").Set(t.Context(),
					state.SetRequest{Items: []state.Write{{Key: key, Value: fmt.Append(nil, n)}}, Consistency: level})
				if err == nil {
					mu.Lock()
					acked[key] = n
					mu.Unlock()
				}
			}
		})
	}
	for range 5 {
		restore(t, lead, file)
	}
	begun := c.term()
	atEnd := map[string]int{}
	mu.Lock()
	for k, v := range acked {
		atEnd[k] = v
	}
	mu.Unlock()
	eventually(t, func() error { // every writer has an acknowledgement after the last restore
		mu.Lock()
		defer mu.Unlock()
		for i := range 3 {
			if k := fmt.Sprint("w", i); acked[k] <= atEnd[k]+2 {
				return errors.New(k + " does not get on")
			}
		}
		return nil
	})
	cancel()
	writers.Wait()
	for k, n := range acked {
		if k == "w1" && c.term() != begun {
			t.Logf("there was an election after the last restore: the last eventual writes may be lost")
			continue
		}
		eventually(t, func() error { // an eventual write may not be committed yet
			if it := get(t, lead.Store("", "s"), k, state.Strong); string(it.Value) != fmt.Sprint(n) {
				return fmt.Errorf("%s = %q, acknowledged was %d", k, it.Value, n)
			}
			return nil
		})
	}
	if it := get(t, lead.Store("", "s"), "marker", state.Strong); string(it.Value) != "restored" {
		t.Errorf("marker %q", it.Value)
	}
	sameState(t, append(c.others(lead), lead)...)
}

// The leader stops in the middle of the restore, and the restore continues with the next leader.
func TestRestore_SurvivesLeaderLoss(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	lead := c.leader()
	for i := range 300 {
		set(t, lead.Store("", "s"), fmt.Sprintf("k%03d", i), fmt.Sprintf("%08000d", i), state.Eventual)
	}
	set(t, lead.Store("", "s"), "k299", fmt.Sprintf("%08000d", 299), state.Strong) // so that all writes are committed
	file := save(t, lead)
	at := c.others(lead)[0]
	src, moved := &pausing{r: bytes.NewReader(file), at: len(file) / 2}, make(chan struct{})
	src.pause = func() {
		c.isolate(lead.Identity().Server)
		c.leader(lead.Identity().Server)
		close(moved)
	}
	if _, err := at.Restore(within(t, 2*time.Minute), src); err != nil {
		t.Fatal(err)
	}
	<-moved
	c.heal()
	if it := get(t, at.Store("", "s"), "k299", state.Strong); len(it.Value) != 8000 {
		t.Errorf("%d bytes", len(it.Value))
	}
	sameState(t, append(c.others(lead), lead)...)
}

// A server that joins during the restore receives the staged data with the rest of the state.
func TestRestore_ServerThatJoinsDuringItGetsSameState(t *testing.T) {
	t.Parallel()
	small := func(o *raftfsm.Options) { o.Bounds.TrailingEntries, o.Bounds.TrailingBytes = 1, 1 }
	c := startCluster(t, 1, small)
	one := c.leader()
	for i := range 300 {
		set(t, one.Store("", "s"), fmt.Sprintf("k%03d", i), fmt.Sprintf("%08000d", i), state.Strong)
	}
	file := save(t, one)
	var two *raftfsm.Host
	src := &pausing{r: bytes.NewReader(file), at: len(file) / 2, pause: func() {
		must(t, one.Groups()[0].Snapshot())
		two = c.add(2, small)
		must(t, two.Adopt(one.Identity().Cluster, 0))
		must(t, one.Groups()[0].AddNonvoter(t.Context(), raft.ServerID(two.Identity().Server), 0))
		eventually(t, func() error {
			if two.Groups()[0].Status().SnapshotIndex == 0 {
				return errors.New("nothing was received")
			}
			return nil
		})
	}}
	if _, err := one.Restore(within(t, 2*time.Minute), src); err != nil {
		t.Fatal(err)
	}
	sameState(t, one, two)
	if it := get(t, two.Store("", "s"), "k000", state.Strong); len(it.Value) != 8000 || len(it.ETag) < 13 {
		t.Errorf("%d bytes, ETag %s", len(it.Value), it.ETag)
	}
}

// pausing calls pause once, after a number of bytes.
type pausing struct {
	r     io.Reader
	at    int
	pause func()
}

func (p *pausing) Read(b []byte) (int, error) {
	n, err := p.r.Read(b[:min(len(b), 64<<10)])
	if p.at -= n; p.at < 0 && p.pause != nil {
		p.pause()
		p.pause = nil
	}
	return n, err
}

func TestRestore_SecondWaitsForFirst(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	set(t, h.Store("", "s"), "k", "v", state.Strong)
	file := save(t, h)
	src := &pausing{r: bytes.NewReader(file), at: 0}
	src.pause = func() {
		if _, err := h.Restore(t.Context(), bytes.NewReader(file)); !fault.Is(err, fault.Conflict) {
			t.Errorf("a second restore: %v", err)
		}
	}
	if _, err := h.Restore(within(t, 2*time.Minute), src); err != nil {
		t.Fatal(err)
	}
}

// A file that claims almost all revisions is refused. Otherwise no later restore would be possible.
func TestRestore_RefusesHeaderWithHugeRevision(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	set(t, h.Store("", "s"), "k", "v", state.Strong)
	file := func(revision uint64) io.Reader {
		var out bytes.Buffer
		w, err := backup.NewWriter(&out, backup.Header{Partitions: 1, Groups: []backup.Group{{Revision: revision}}})
		must(t, err)
		must(t, w.Begin(0))
		_, err = w.End()
		must(t, err)
		_, err = w.Close()
		must(t, err)
		return &out
	}
	for _, revision := range []uint64{1<<62 + 1, 1<<63 - 1, 1<<64 - 1} {
		_, err := h.Restore(within(t, time.Minute), file(revision))
		if !fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), "header") {
			t.Errorf("revision %d: %v", revision, err)
		}
	}
	if it := get(t, h.Store("", "s"), "k", state.Strong); string(it.Value) != "v" {
		t.Errorf("after the refusals the key reads %q", it.Value)
	}
	for range 2 {
		if _, err := h.Restore(within(t, time.Minute), file(1<<62)); err != nil {
			t.Error(err)
		}
	}
}
