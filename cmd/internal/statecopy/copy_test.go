package statecopy_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/cmd/internal/statecopy"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a store in this process, with keys of several applications.
type source struct {
	*statecopy.Opened
	store *inmemory.Store
}

func newSource(t *testing.T, prefix string, values map[string]string) source {
	t.Helper()
	p, err := state.ParseKeyPrefix(prefix)
	if err != nil {
		t.Fatal(err)
	}
	s := source{store: inmemory.Open(inmemory.Options{})}
	t.Cleanup(func() { _ = s.store.Close() })
	s.Opened, err = statecopy.NewOpened(&state.Instance{Store: s.store, KeyPrefix: p},
		state.Owner{App: "shop", Namespace: "prod", Store: "redisstore"})
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range values {
		s.set(t, state.Write{Key: k, Value: []byte(v)})
	}
	return s
}

func (s source) set(t *testing.T, w ...state.Write) {
	t.Helper()
	if _, err := s.store.Set(t.Context(), state.SetRequest{Items: w}); err != nil {
		t.Fatal(err)
	}
}

// target is a store in memory.
type target struct {
	mu     sync.Mutex
	items  map[string]statecopy.Item
	bad    string // a key that the store refuses
	before func() error
	after  func() error
	delete func(k statecopy.Key) error // called after a delete
	writes int
}

func newTarget(keys ...string) *target {
	s := &target{items: map[string]statecopy.Item{}}
	for _, k := range keys {
		s.items[k] = statecopy.Item{Key: k, Value: []byte(`"newer"`)}
	}
	return s
}

func (s *target) Page(context.Context, string, string, int) (out []statecopy.Key, next string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.items {
		out = append(out, statecopy.Key{Name: k})
	}
	return out, "", nil
}

// Read refuses all keys if one is not valid, as a node does.
func (s *target) Read(_ context.Context, keys []string) (map[string]statecopy.Value, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]statecopy.Value{}
	for _, k := range keys {
		for part := range strings.SplitSeq(k, state.Separator) {
			if state.ValidateKey(part) != nil {
				return nil, fault.New(fault.Invalid, "test", "keys are refused")
			}
		}
		if i, there := s.items[k]; there {
			out[k] = statecopy.Value{Data: i.Value, Binary: i.Binary, Expires: i.Expires}
		}
	}
	return out, nil
}

func (s *target) Write(_ context.Context, items []statecopy.Item, createOnly bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	if s.before != nil {
		if err := s.before(); err != nil {
			return err
		}
	}
	for _, i := range items {
		if _, there := s.items[i.Key]; there && createOnly {
			return fault.New(fault.Conflict, "test", "possible etag mismatch")
		}
		if i.Key == s.bad {
			return fault.New(fault.Invalid, "test", "key "+i.Key+" has 5000000 bytes; the limit is 4194304")
		}
	}
	for _, i := range items {
		s.items[i.Key] = i
	}
	if s.after != nil {
		return s.after()
	}
	return nil
}

func (s *target) Delete(_ context.Context, k statecopy.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.items[k.Name]; !there {
		return fault.New(fault.Conflict, "test", "possible etag mismatch")
	}
	delete(s.items, k.Name)
	if s.delete != nil {
		return s.delete(k)
	}
	return nil
}

func (s *target) values() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{}
	for k, i := range s.items {
		out[k] = string(i.Value)
	}
	return out
}

// to returns a copy with small batches.
func to(from statecopy.Source, t *target) statecopy.Copy {
	return statecopy.Copy{App: "shop", FromName: "old", ToName: "new", From: from, To: t, Batch: 3, Bytes: 1 << 20,
		Workers: 2, Pause: func(context.Context, int, time.Duration) bool { return false }}
}

func run(t *testing.T, c statecopy.Copy) statecopy.Report {
	t.Helper()
	r, err := c.Run(t.Context())
	if err != nil || !r.Completed {
		t.Fatalf("%+v, %v", r, err)
	}
	return r
}

func TestCopy_CopiesOrReportsEveryKey(t *testing.T) {
	s := newSource(t, "", map[string]string{"shop||a": `{"n": 1.10}`, "shop||b/c d": `"<é>"`, "shop||none": "null",
		"shop||cart||7||items": "[]", "shop||odd||key": "1", "orders||a": "1", "actors||cart": "[]", "session": "1"})
	sealed := state.Write{Key: "shop||sealed", ContentType: state.OctetStream,
		Value: []byte("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5||mykey")}
	raw := state.Write{Key: "shop||raw", Value: []byte("\x00\xff raw"), ContentType: state.OctetStream}
	last := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	expiries := map[string]time.Time{"ttl": last.AddDate(-7900, 0, 0), "last": last}
	ttl := state.Write{Key: "shop||ttl", Value: []byte("1"),
		TTL: state.TTL{Set: true, At: new(expiries["ttl"].Add(-time.Millisecond))}}
	latest := state.Write{Key: "shop||last", Value: []byte("1"),
		TTL: state.TTL{Set: true, At: new(last.Add(time.Millisecond))}}
	s.set(t, sealed, raw, ttl, latest)
	into := newTarget()
	var ledger bytes.Buffer
	c := to(s, into)
	c.Skipped = &ledger
	r := run(t, c)
	want := map[string]string{"a": `{"n": 1.10}`, "b/c d": `"<é>"`, "none": "null", "raw": "\x00\xff raw", "ttl": "1",
		"last": "1", "cart||7||items": "[]"}
	if diff := cmp.Diff(want, into.values()); diff != "" {
		t.Errorf("copied: %s", diff)
	}
	for k, i := range into.items {
		if want := expiries[k]; !i.Expires.Equal(want) {
			t.Errorf("%s expires at %v, want %v", k, i.Expires, want)
		}
	}
	if !into.items["raw"].Binary || into.items["a"].Binary {
		t.Error("binary data and JSON are mixed up")
	}
	if diff := cmp.Diff(map[string]int64{"orders": 1, "actors": 1, "": 1, "shop": 1}, s.Others()); diff != "" {
		t.Errorf("others: %s", diff)
	}
	if r.Seen != 8 || r.Actors != 1 || r.Copied != 7 || r.Expiring != 2 || r.Binary != 1 || r.Unreadable != 1 ||
		r.Problems() != 1 {
		t.Errorf("%+v", r)
	}
	if text := `{"key":"sealed","reason":"cannot be read in old: Dapr encrypted it`; !strings.Contains(ledger.String(),
		text) {
		t.Errorf("no %s in %s", text, &ledger)
	}
}

func TestCopy_SecondRunKeepsNewerData(t *testing.T) {
	want, stored := map[string]string{}, map[string]string{}
	for n := range 250 {
		k := fmt.Sprint("k", n)
		want[k], stored["shop||"+k] = fmt.Sprint(n), fmt.Sprint(n)
	}
	s := newSource(t, "", stored)
	into := newTarget("k7", "k8", "k200")
	if r := run(t, to(s, into)); r.Copied != 247 || r.Differ != 3 || r.Problems() != 3 {
		t.Errorf("%+v", r)
	}
	want["k7"], want["k8"], want["k200"] = `"newer"`, `"newer"`, `"newer"`
	if diff := cmp.Diff(want, into.values()); diff != "" {
		t.Error(diff)
	}
	over := to(s, into)
	over.Overwrite, over.DryRun = true, true
	if r := run(t, over); r.Copied != 3 || into.values()["k7"] != `"newer"` {
		t.Errorf("the dry run: %+v", r)
	}
	over.DryRun, over.Delete = false, true
	into.items["extra"] = statecopy.Item{Key: "extra"}
	if r := run(t, over); r.Copied != 3 || r.Same != 247 || r.Deleted != 1 || r.Problems() != 0 ||
		into.values()["k7"] != "7" {
		t.Errorf("the second run: %+v", r)
	}
	compare := to(s, into)
	compare.Verify = true
	if r := run(t, compare); r.Same != 250 || r.Problems() != 0 || into.writes > 1000 {
		t.Errorf("the comparison: %+v", r)
	}
}

func TestCopy_ReportsARefusedValueAndCopiesTheRest(t *testing.T) {
	stored := map[string]string{}
	for n := range 20 {
		stored[fmt.Sprint("shop||k", n)] = "1"
	}
	into := newTarget("k3")
	into.bad = "k5"
	r := run(t, to(newSource(t, "", stored), into))
	want := map[statecopy.Problem]bool{{Key: "k5", Reason: "key k5 has 5000000 bytes; the limit is 4194304"}: true,
		{Key: "k3", Reason: "another value in new"}: true}
	if r.Copied != 18 || r.Refused != 1 || r.Differ != 1 || len(r.Examples) != 2 || !want[r.Examples[0]] ||
		!want[r.Examples[1]] {
		t.Errorf("%+v", r)
	}
}

func TestCopy_ReportsInvalidKeysAndCopiesTheRest(t *testing.T) {
	long := strings.Repeat("x", 5000)
	s := newSource(t, "", map[string]string{"shop||a": "1", "shop||" + long: "1", "shop||z": "1", "shop||\xff": "1",
		"shop||||||k": "1", "shop||cart||7||" + long: "1"})
	into := newTarget()
	c := to(s, into)
	c.Batch = 10 // all keys are read in one request
	c.DryRun = true
	if r := run(t, c); r.Refused != 4 || r.Copied != 2 {
		t.Errorf("the dry run: %+v", r)
	}
	c.DryRun = false
	r := run(t, c)
	if diff := cmp.Diff(map[string]string{"a": "1", "z": "1"}, into.values()); diff != "" {
		t.Errorf("copied: %s", diff)
	}
	if r.Copied != 2 || r.Refused != 4 || r.Problems() != 4 || r.Seen != 6 {
		t.Errorf("%+v", r)
	}
	reasons := fmt.Sprint(r.Examples)
	for _, want := range []string{"has 5000 bytes; the limit is 4096", "is not valid UTF-8", "the form type||id||key"} {
		if !strings.Contains(reasons, want) {
			t.Errorf("no %q in %s", want, reasons)
		}
	}
	c.Verify = true
	if r := run(t, c); r.Refused != 4 || r.Same != 2 || r.Problems() != 4 {
		t.Errorf("the comparison: %+v", r)
	}
}

// TestCopy_RepeatedDeleteWasApplied loses the answers of deletes. A repeated delete then conflicts with the first one.
func TestCopy_RepeatedDeleteWasApplied(t *testing.T) {
	into := newTarget("gone", "changed")
	into.delete = func(k statecopy.Key) error {
		if k.Name == "changed" { // another client writes the key again
			into.items[k.Name] = statecopy.Item{Key: k.Name}
			return fault.New(fault.Conflict, "test", "possible etag mismatch")
		}
		return fault.New(fault.Unavailable, "test", "no answer")
	}
	c := to(newSource(t, "", nil), into)
	c.Delete = true
	c.Pause = func(context.Context, int, time.Duration) bool { return true }
	r := run(t, c)
	want := []statecopy.Problem{{Key: "changed", Reason: "written in new during the copy"}}
	if diff := cmp.Diff(want, r.Examples); diff != "" || r.Deleted != 1 || r.Extra != 1 {
		t.Errorf("%+v: %s", r, diff)
	}
}

// unversioned is a target that cannot read the ETag of its keys.
type unversioned struct{ *target }

func (u unversioned) Page(ctx context.Context, prefix, token string, limit int) ([]statecopy.Key, string, error) {
	keys, next, err := u.target.Page(ctx, prefix, token, limit)
	for i := range keys {
		keys[i].ETag, keys[i].Err = "", "the ETag cannot be read"
	}
	return keys, next, err
}

// A delete without an ETag could delete a value that was written after the listing.
func TestCopy_DeletesNoKeyWithoutItsETag(t *testing.T) {
	into := newTarget("k")
	into.delete = func(statecopy.Key) error {
		t.Error("the key is deleted")
		return nil
	}
	c := to(newSource(t, "", nil), into)
	c.To, c.Delete = unversioned{into}, true
	r := run(t, c)
	want := []statecopy.Problem{{Key: "k", Reason: "the ETag cannot be read"}}
	if diff := cmp.Diff(want, r.Examples); diff != "" || r.Deleted != 0 {
		t.Errorf("%+v: %s", r, diff)
	}
}

// slow is a source whose first page takes a minute.
type slow struct{ *target }

func (s slow) Page(ctx context.Context, prefix, token string, limit int) ([]statecopy.Key, string, error) {
	<-time.After(time.Minute)
	return s.target.Page(ctx, prefix, token, limit)
}

func TestCopy_KeepsItsRateAfterASlowRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := newTarget()
		for n := range 30 {
			k := fmt.Sprint("k", n)
			from.items[k] = statecopy.Item{Key: k, Value: []byte("1")}
		}
		c := to(slow{from}, newTarget())
		c.Rate = 10
		begun := time.Now()
		run(t, c)
		if took := time.Since(begun) - time.Minute; took < 2*time.Second || took > 3*time.Second {
			t.Errorf("30 keys take %s at 10 keys/s, want 2 s to 3 s", took)
		}
	})
}

// TestCopy_RetriesWritesWhileTheStoreIsUnavailable checks that a failed write is repeated. If only the answer of a
// write is lost, the repeated write conflicts with it, and the key counts as the same in both stores.
func TestCopy_RetriesWritesWhileTheStoreIsUnavailable(t *testing.T) {
	s := newSource(t, "", map[string]string{"shop||a": "1"})
	into := newTarget()
	lost := func() error {
		if into.writes < 4 {
			return fault.New(fault.Internal, "test", "no quorum")
		}
		return nil
	}
	c := to(s, into)
	c.Pause = func(_ context.Context, attempt int, _ time.Duration) bool { return attempt < 4 }
	into.before = lost
	if r := run(t, c); r.Copied != 1 || into.writes != 4 {
		t.Errorf("%+v after %d writes", r, into.writes)
	}
	into = newTarget()
	into.after = lost
	c.To = into
	if r := run(t, c); r.Same != 1 || r.Problems() != 0 {
		t.Errorf("%+v after %d writes", r, into.writes)
	}
	into = newTarget()
	into.before = func() error { return fault.New(fault.Denied, "test", "the token is wrong") }
	c.To = into
	if r, err := c.Run(t.Context()); !fault.Is(err, fault.Denied) || r.Completed || into.writes != 1 {
		t.Errorf("%+v, %v after %d writes", r, err, into.writes)
	}
}

func TestCopy_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	into := newTarget()
	into.before = func() error {
		cancel(fault.New(fault.Unavailable, "test", "interrupted"))
		return fault.New(fault.Internal, "test", "cut")
	}
	_, err := to(newSource(t, "", map[string]string{"shop||a": "1"}), into).Run(ctx)
	if err == nil || !strings.Contains(fault.Text(err), "interrupted") {
		t.Errorf("%v", err)
	}
}

func TestOpened_HasTheKeysOfThePrefix(t *testing.T) {
	stored := map[string]string{"shop||a": "1", "prod.shop||b": "1", "redisstore||c": "1", "mine||d": "1", "e": "1"}
	for prefix, want := range map[string]string{
		"": "a", "appid": "a", "namespace": "b", "name": "c", "MINE": "d", "none": "e",
	} {
		into := newTarget()
		run(t, to(newSource(t, prefix, stored), into))
		if diff := cmp.Diff(map[string]string{want: "1"}, into.values()); diff != "" {
			t.Errorf("%s: %s", prefix, diff)
		}
	}
	into := newTarget()
	c := to(newSource(t, "", map[string]string{"shop||a1": "1", "shop||b1": "1", "shop||a||1||k": "1"}), into)
	if c.Prefix = "a"; run(t, c).Seen != 1 || into.values()["a1"] != "1" {
		t.Errorf("with a prefix of keys %v is copied", into.values())
	}
}
