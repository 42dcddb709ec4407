package state_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/internal/fault"
)

// Encryption keys of each supported size.
const (
	key128 = "000102030405060708090a0b0c0d0e0f"
	key192 = "000102030405060708090a0b0c0d0e0f1011121314151617"
	key256 = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1F"
)

func ring(t testing.TB, primary, secondary string) *state.KeyRing {
	t.Helper()
	r, err := state.NewKeyRing(primary, secondary)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func memory(t testing.TB) *inmemory.Store {
	s := inmemory.Open(inmemory.Options{})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func put(t testing.TB, s state.Store, w state.Write) {
	t.Helper()
	if _, err := s.Set(t.Context(), state.SetRequest{Items: []state.Write{w}}); err != nil {
		t.Fatal(err)
	}
}

func get(t testing.TB, s state.Store, key string) (state.Item, error) {
	t.Helper()
	return s.Get(t.Context(), state.GetRequest{Key: key})
}

func TestEncrypted_RoundTrip(t *testing.T) {
	for _, key := range []string{key128, key192, key256} {
		below := memory(t)
		s := state.Encrypted(below, ring(t, key, ""))
		for name, w := range map[string]state.Write{
			"json":  {Value: []byte(`{"password":"hunter2"}`)},
			"bytes": {Value: []byte("hunter2\x00\xff"), ContentType: state.OctetStream},
			"empty": {Value: []byte{}, ContentType: "x/y"},
		} {
			w.Key = "app||" + name
			put(t, s, w)
			item, err := get(t, s, w.Key)
			if err != nil || !bytes.Equal(item.Value, w.Value) || item.ContentType != w.ContentType {
				t.Errorf("%s: %+v, %v", name, item, err)
			}
			raw, err := get(t, below, w.Key)
			if err != nil || bytes.Contains(raw.Value, []byte("hunter2")) || raw.ContentType != state.OctetStream ||
				raw.ETag != item.ETag {
				t.Errorf("%s: below lies %+v, %v", name, raw, err)
			}
			if want := len(w.Value) + len(w.ContentType) + state.SealOverhead; len(raw.Value) != want {
				t.Errorf("%s: %d bytes, want %d", name, len(raw.Value), want)
			}
		}
	}
}

func TestEncrypted_SameValueDiffersEachTime(t *testing.T) {
	below := memory(t)
	s := state.Encrypted(below, ring(t, key256, ""))
	seen := map[string]bool{}
	for i := range 100 {
		put(t, s, state.Write{Key: "app||k", Value: []byte("1")})
		item, err := get(t, below, "app||k")
		if err != nil || seen[string(item.Value)] {
			t.Fatalf("write %d: %v", i, err)
		}
		seen[string(item.Value)] = true
	}
}

// A store that compares the contents of requests must recognise a retry, although the values are encrypted.
func TestEncrypted_RetryWithRequestIDIsIdentical(t *testing.T) {
	s := state.Encrypted(memory(t), ring(t, key256, ""))
	r := state.SetRequest{Items: []state.Write{{Key: "app||k", Value: []byte("1"), Concurrency: state.FirstWrite}},
		RequestID: "r1"}
	first, err := s.Set(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Set(t.Context(), r)
	if diff := cmp.Diff(first.ETags, again.ETags); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	r.Items = []state.Write{{Key: "app||k", Value: []byte("2"), Concurrency: state.FirstWrite}}
	if _, err := s.Set(t.Context(), r); !fault.Is(err, fault.Invalid) {
		t.Errorf("another request under the same id: %v", err)
	}
}

func TestEncrypted_ReadsOldValuesAfterRotation(t *testing.T) {
	below := memory(t)
	put(t, state.Encrypted(below, ring(t, key128, "")), state.Write{Key: "app||old", Value: []byte("1")})
	rotated := state.Encrypted(below, ring(t, key256, key128))
	put(t, rotated, state.Write{Key: "app||new", Value: []byte("2")})
	for key, want := range map[string]string{"app||old": "1", "app||new": "2"} {
		if item, err := get(t, rotated, key); err != nil || string(item.Value) != want {
			t.Errorf("%s: %q, %v", key, item.Value, err)
		}
	}
	over := state.Encrypted(below, ring(t, key256, ""))
	if _, err := get(t, over, "app||new"); err != nil {
		t.Error(err)
	}
	_, err := get(t, over, "app||old")
	if !fault.Is(err, fault.Corrupt) || fault.KeyOf(err) != "app||old" ||
		!strings.Contains(err.Error(), state.MetadataSecondaryKey) {
		t.Errorf("a value of a key that is gone: %v", err)
	}
	put(t, rotated, state.Write{Key: "app||old", Value: []byte("3")}) // the new key encrypts the value again
	if item, err := get(t, over, "app||old"); err != nil || string(item.Value) != "3" {
		t.Errorf("%q, %v", item.Value, err)
	}
}

func TestEncrypted_RefusesForeignValues(t *testing.T) {
	below := memory(t)
	s := state.Encrypted(below, ring(t, key256, ""))
	put(t, s, state.Write{Key: "app||k", Value: []byte(`"hunter2"`)})
	sealed, err := get(t, below, "app||k")
	if err != nil {
		t.Fatal(err)
	}
	spoilt := map[string][]byte{"plain": []byte(`"text"`), "none": {}, "magic": []byte("QE\x01"),
		"short": sealed.Value[:40], "cut": sealed.Value[:len(sealed.Value)-1],
		"longer": append(bytes.Clone(sealed.Value), 0)}
	for i := range sealed.Value {
		flipped := bytes.Clone(sealed.Value)
		flipped[i] ^= 1
		spoilt[fmt.Sprint("bit of byte ", i)] = flipped
	}
	for name, value := range spoilt {
		put(t, below, state.Write{Key: "app||k", Value: value})
		if item, err := get(t, s, "app||k"); !fault.Is(err, fault.Corrupt) || item.Value != nil ||
			fault.KeyOf(err) != "app||k" || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %q, %v", name, item.Value, err)
		}
	}
	put(t, below, state.Write{Key: "other||k", Value: sealed.Value}) // copied from another key
	if _, err := get(t, s, "other||k"); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a moved value: %v", err)
	}
}

func TestEncrypted_BulkFailsOnlyDamagedValue(t *testing.T) {
	below := memory(t)
	s := state.Encrypted(below, ring(t, key256, ""))
	put(t, s, state.Write{Key: "app||a", Value: []byte("1")})
	put(t, below, state.Write{Key: "app||b", Value: []byte("2")})
	items, err := state.AbilitiesOf(s).BulkGetter.BulkGet(t.Context(),
		state.BulkGetRequest{Keys: []string{"app||a", "app||b", "app||none", "app||a"}})
	if err != nil || len(items) != 4 {
		t.Fatal(items, err)
	}
	if string(items[0].Value) != "1" || !fault.Is(items[1].Err, fault.Corrupt) || items[1].Value != nil ||
		items[2].Found() || items[2].Err != nil || string(items[3].Value) != "1" {
		t.Errorf("%+v", items)
	}
}

func TestEncrypted_DoesNotChangeRequests(t *testing.T) {
	s := state.Encrypted(memory(t), ring(t, key256, ""))
	set := state.SetRequest{Items: []state.Write{{Key: "app||a", Value: []byte("1")}}}
	transact := state.TransactRequest{Operations: []state.Operation{{Write: state.Write{Key: "app||b",
		Value: []byte("2")}}, {Kind: state.Remove, Write: state.Write{Key: "app||a"}}}}
	if _, err := s.Set(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	if _, err := state.AbilitiesOf(s).Transactor.Transact(t.Context(), transact); err != nil {
		t.Fatal(err)
	}
	if string(set.Items[0].Value) != "1" || string(transact.Operations[0].Value) != "2" ||
		transact.Operations[0].ContentType != "" {
		t.Error("the values were encrypted in place")
	}
}

func TestEncrypted_HasInterfacesOfStore(t *testing.T) {
	for abilities, store := range stores() {
		wrapped := state.Encrypted(store, ring(t, key256, ""))
		transacts := state.AbilitiesOf(wrapped).Transactor != nil
		bulk := state.AbilitiesOf(wrapped).BulkGetter != nil
		lists := state.AbilitiesOf(wrapped).Lister != nil
		features := state.AbilitiesOf(wrapped).Featurer != nil
		got := fmt.Sprint(transacts, bulk, lists, features)
		if want := fmt.Sprint(strings.Contains(abilities, "T"), strings.Contains(abilities, "B"),
			strings.Contains(abilities, "L"), strings.Contains(abilities, "F")); got != want {
			t.Errorf("%q: %s, want %s", abilities, got, want)
		}
	}
}

func TestKeyRing_RefusesBadKeysAndNeverPrintsKeys(t *testing.T) {
	for name, keys := range map[string][2]string{
		"no primary": {"", key256}, "too short": {key128[:30], ""}, "no hex": {strings.Repeat("zz", 16), ""},
		"odd size": {key128 + "00", ""}, "bad secondary": {key256, "hunter2"}, "spaces": {" " + key128, ""},
	} {
		_, err := state.NewKeyRing(keys[0], keys[1])
		if !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "hunter2") ||
			strings.Contains(err.Error(), key128[:30]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if text := fmt.Sprintf(format, ring(t, key256, key128)); strings.Contains(strings.ToLower(text), key128) ||
			!strings.Contains(text, "key ring") && format != "%x" {
			t.Errorf("%s prints %s", format, text)
		}
	}
}

// A listing has keys and no values, so a value that cannot be decrypted is listed.
func TestEncrypted_ListsWithoutValues(t *testing.T) {
	below := memory(t)
	s := state.Encrypted(below, ring(t, key256, ""))
	put(t, s, state.Write{Key: "a||good", Value: []byte("1")})
	put(t, below, state.Write{Key: "a||bad", Value: []byte("not encrypted"), ContentType: state.OctetStream})
	page, err := state.AbilitiesOf(s).Lister.List(t.Context(), state.ListRequest{Prefix: "a||"})
	if err != nil || len(page.Items) != 2 {
		t.Fatalf("List = %+v, %v", page, err)
	}
	for _, item := range page.Items {
		if item.Value != nil || item.ContentType != "" || item.ETag == "" {
			t.Errorf("the listing has %+v", item)
		}
	}
}

func TestEncrypted_PassesFailures(t *testing.T) {
	below := newAble()
	below.recorder.err = fault.New(fault.Unavailable, "test", "no quorum")
	s := state.Encrypted(below, ring(t, key256, ""))
	calls := map[string]func(context.Context) error{
		"get": func(ctx context.Context) error { _, err := s.Get(ctx, state.GetRequest{Key: "k"}); return err },
		"set": func(ctx context.Context) error {
			_, err := s.Set(ctx, state.SetRequest{Items: []state.Write{{Key: "k"}}})
			return err
		},
		"bulk": func(ctx context.Context) error {
			_, err := state.AbilitiesOf(s).BulkGetter.BulkGet(ctx, state.BulkGetRequest{Keys: []string{"k"}})
			return err
		},
		"list": func(ctx context.Context) error {
			_, err := state.AbilitiesOf(s).Lister.List(ctx, state.ListRequest{})
			return err
		},
	}
	for name, call := range calls {
		if err := call(t.Context()); !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every value in the store is either refused or decrypted to the original value.
func FuzzEncryptedGet(f *testing.F) {
	f.Add([]byte("QE\x01"), "k")
	f.Add(append([]byte("QE\x16"), make([]byte, 60)...), "k")
	f.Add([]byte(`{"a":1}`), "app||k")
	f.Fuzz(func(t *testing.T, value []byte, key string) {
		below := newAble()
		s := state.Encrypted(below, ring(t, key128, ""))
		below.recorder.item = state.Item{Key: key, Value: value, ETag: "1"}
		if item, err := s.Get(t.Context(), state.GetRequest{Key: key}); !fault.Is(err, fault.Corrupt) &&
			!fault.Is(err, fault.Unimplemented) || item.Value != nil {
			t.Fatalf("%q, %v", item.Value, err) // fault.Unimplemented: the value is in a newer format
		}
		if _, err := s.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: key, Value: value}}}); err != nil {
			t.Fatal(err)
		}
		below.recorder.item.Value = below.recorder.last.(state.SetRequest).Items[0].Value
		if item, err := s.Get(t.Context(), state.GetRequest{Key: key}); err != nil || !bytes.Equal(item.Value, value) {
			t.Fatalf("%q, %v", item.Value, err)
		}
	})
}

// The error for a value in a newer format has no hint to delete or save the value again, because the value is intact.
func TestEncrypted_NewerFormIsReported(t *testing.T) {
	below := memory(t)
	s := state.Encrypted(below, ring(t, key256, ""))
	put(t, s, state.Write{Key: "app||k", Value: []byte(`1`)})
	item, err := get(t, below, "app||k")
	if err != nil {
		t.Fatal(err)
	}
	newer := bytes.Clone(item.Value)
	newer[2] = 2
	put(t, below, state.Write{Key: "app||k", Value: newer, ContentType: state.OctetStream})
	_, err = get(t, s, "app||k")
	if !fault.Is(err, fault.Unimplemented) || !strings.Contains(fault.Text(err), "form 2") ||
		!strings.Contains(fault.Text(err), "up to 1") || strings.Contains(fault.Text(err), "delete") {
		t.Errorf("got %v", err)
	}
}

// watched is a store that can be watched. All its watches share one part.
type watched struct {
	state.Store
	part state.WatchPart
}

func (w watched) Watch(context.Context, state.WatchRequest) (state.Watch, error) {
	return sharing{part: w.part}, nil
}

type sharing struct {
	state.Watch
	part state.WatchPart
}

func (s sharing) Next(context.Context, time.Duration) (state.WatchPart, error) { return s.part, nil }

func (sharing) Position() state.Position { return state.Position{} }

func (s sharing) Poll() (state.WatchPart, state.Readiness, error) {
	return s.part, state.WatchReady, nil
}

func TestEncrypted_WatchDecryptsValues(t *testing.T) {
	below := memory(t)
	put(t, state.Encrypted(below, ring(t, key256, "")), state.Write{Key: "app||k", Value: []byte(`1`)})
	item, err := get(t, below, "app||k")
	if err != nil {
		t.Fatal(err)
	}
	item.Key = "app||k"
	part := state.WatchPart{Items: []state.Change{{Item: item}},
		Changes: []state.Change{{Item: item}, {Item: state.Item{Key: "app||gone", ETag: "2"}, Deleted: true}}}
	watcher := state.AbilitiesOf(state.Encrypted(watched{below, part}, ring(t, key256, ""))).Watcher
	for _, way := range []string{"next", "poll", "poll of a second watch"} {
		w, err := watcher.Watch(t.Context(), state.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var got state.WatchPart
		if way == "next" {
			got, err = w.Next(t.Context(), 0)
		} else {
			got, _, err = w.Poll()
		}
		if err != nil {
			t.Fatalf("%s: %v", way, err)
		}
		for _, list := range [][]state.Change{got.Items, got.Changes} {
			if string(list[0].Value) != "1" || list[0].ContentType == state.OctetStream {
				t.Errorf("%s: delivered %q as %q", way, list[0].Value, list[0].ContentType)
			}
		}
		if !bytes.Equal(part.Changes[0].Value, item.Value) || !bytes.Equal(part.Items[0].Value, item.Value) {
			t.Fatalf("%s: a part that other watches share was changed", way)
		}
	}
}

func TestEncrypted_WatchReportsDamagedValues(t *testing.T) {
	part := state.WatchPart{Changes: []state.Change{{Item: state.Item{Key: "app||k", Value: []byte("1"), ETag: "1"}}}}
	store := state.Encrypted(watched{memory(t), part}, ring(t, key256, ""))
	w, err := state.AbilitiesOf(store).Watcher.Watch(t.Context(), state.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := w.Poll(); !fault.Is(err, fault.Corrupt) || len(got.Changes) > 0 {
		t.Errorf("delivered %v, %v", got.Changes, err)
	}
}

// series is a store that can be watched. Its watches deliver the given parts in order.
type series struct {
	state.Store
	parts []state.WatchPart
}

func (s series) Watch(context.Context, state.WatchRequest) (state.Watch, error) {
	return &seriesWatch{parts: s.parts, at: 4}, nil
}

type seriesWatch struct {
	state.Watch
	parts []state.WatchPart
	at    uint64
}

func (w *seriesWatch) Position() state.Position {
	return state.Position{Cluster: "0a0b0c0d", Revision: w.at}
}

func (w *seriesWatch) Next(context.Context, time.Duration) (part state.WatchPart, err error) {
	part, w.parts = w.parts[0], w.parts[1:]
	w.at = part.Seen
	return part, nil
}

func (w *seriesWatch) Poll() (state.WatchPart, state.Readiness, error) {
	if len(w.parts) == 0 {
		return state.WatchPart{}, state.WatchIdle, nil
	}
	part, err := w.Next(context.Background(), 0)
	return part, state.WatchReady, err
}

// The position of a watch must not be after changes that were not delivered, because a client continues from there.
func TestEncrypted_WatchKeepsPositionAtDamagedValue(t *testing.T) {
	below := memory(t)
	put(t, state.Encrypted(below, ring(t, key256, "")), state.Write{Key: "app||k", Value: []byte(`1`)})
	good, err := get(t, below, "app||k")
	if err != nil {
		t.Fatal(err)
	}
	good.Key = "app||k"
	damaged := state.Item{Key: "app||k", Value: []byte("1"), ETag: "7"}
	first := state.WatchPart{Changes: []state.Change{{Item: good}}, Seen: 5}
	bookmark := state.WatchPart{Seen: 6}
	broken := state.WatchPart{Changes: []state.Change{{Item: good}, {Item: damaged}}, Seen: 8}
	poll := func(w state.Watch) error { _, _, err := w.Poll(); return err }
	next := func(w state.Watch) error { _, err := w.Next(t.Context(), 0); return err }
	for name, c := range map[string]struct {
		take  func(state.Watch) error
		parts []state.WatchPart
		want  uint64
	}{
		"next, at the start":    {next, []state.WatchPart{broken}, 4},
		"poll, at the start":    {poll, []state.WatchPart{broken}, 4},
		"next, after a part":    {next, []state.WatchPart{first, broken}, 5},
		"poll, after a part":    {poll, []state.WatchPart{first, broken}, 5},
		"next, after two parts": {next, []state.WatchPart{first, bookmark, broken}, 6},
		"poll, after two parts": {poll, []state.WatchPart{first, bookmark, broken}, 6},
	} {
		store := state.Encrypted(series{below, c.parts}, ring(t, key256, ""))
		w, err := state.AbilitiesOf(store).Watcher.Watch(t.Context(), state.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for range c.parts {
			err = c.take(w)
		}
		if want := (state.Position{Cluster: "0a0b0c0d", Revision: c.want}); !fault.Is(err, fault.Corrupt) ||
			w.Position() != want {
			t.Errorf("%s: the position is %v after %v, want %v", name, w.Position(), err, want)
		}
	}
}
