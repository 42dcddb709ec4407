package state_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// recorder is a store without optional interfaces. It records its last request, and returns the answers in its
// fields.
type recorder struct {
	last  any
	item  state.Item
	items []state.Item
	page  state.Page
	err   error
}

func (r *recorder) Get(_ context.Context, q state.GetRequest) (state.Item, error) {
	r.last = q
	return r.item, r.err
}

func (r *recorder) Set(_ context.Context, q state.SetRequest) (state.Written, error) {
	r.last = q
	return state.Written{}, r.err
}

func (r *recorder) Delete(_ context.Context, q state.DeleteRequest) (state.Written, error) {
	r.last = q
	return state.Written{}, r.err
}

func (r *recorder) Close() error { return r.err }

// Each of these types implements one optional interface.
type (
	transacts struct{ r *recorder }
	bulks     struct{ r *recorder }
	lists     struct{ r *recorder }
	featured  struct{}
)

func (a transacts) Transact(_ context.Context, q state.TransactRequest) (state.Written, error) {
	a.r.last = q
	return state.Written{}, a.r.err
}

func (a bulks) BulkGet(_ context.Context, q state.BulkGetRequest) ([]state.Item, error) {
	a.r.last = q
	return a.r.items, a.r.err
}

func (a lists) List(_ context.Context, q state.ListRequest) (state.Page, error) {
	a.r.last = q
	return a.r.page, a.r.err
}

func (featured) Features() []state.Feature { return []state.Feature{"SPECIAL"} }

// able is a store with every optional interface.
type able struct {
	*recorder
	transacts
	bulks
	lists
	featured
}

func newAble() able {
	r := &recorder{}
	return able{recorder: r, transacts: transacts{r}, bulks: bulks{r}, lists: lists{r}}
}

// stores returns a store for every set of optional interfaces. In a key, T, B, L and F stand for the interfaces of
// the store.
func stores() map[string]state.Store {
	r := &recorder{}
	t, b, l, f := transacts{r}, bulks{r}, lists{r}, featured{}
	return map[string]state.Store{
		"": r,
		"T": struct {
			*recorder
			transacts
		}{r, t},
		"B": struct {
			*recorder
			bulks
		}{r, b},
		"TB": struct {
			*recorder
			transacts
			bulks
		}{r, t, b},
		"L": struct {
			*recorder
			lists
		}{r, l},
		"TL": struct {
			*recorder
			transacts
			lists
		}{r, t, l},
		"BL": struct {
			*recorder
			bulks
			lists
		}{r, b, l},
		"TBL": struct {
			*recorder
			transacts
			bulks
			lists
		}{r, t, b, l},
		"F": struct {
			*recorder
			featured
		}{r, f},
		"TF": struct {
			*recorder
			transacts
			featured
		}{r, t, f},
		"BF": struct {
			*recorder
			bulks
			featured
		}{r, b, f},
		"TBF": struct {
			*recorder
			transacts
			bulks
			featured
		}{r, t, b, f},
		"LF": struct {
			*recorder
			lists
			featured
		}{r, l, f},
		"TLF": struct {
			*recorder
			transacts
			lists
			featured
		}{r, t, l, f},
		"BLF": struct {
			*recorder
			bulks
			lists
			featured
		}{r, b, l, f},
		"TBLF": able{r, t, b, l, f},
	}
}

// abilities returns the letters of the optional interfaces of a store. It calls each interface to check that the call
// succeeds.
func abilities(t *testing.T, s state.Store) string {
	t.Helper()
	ctx, out := t.Context(), ""
	if a := state.AbilitiesOf(s).Transactor; a != nil {
		out += "T"
		if _, err := a.Transact(ctx, state.TransactRequest{}); err != nil {
			t.Error(err)
		}
	}
	if a := state.AbilitiesOf(s).BulkGetter; a != nil {
		out += "B"
		if _, err := a.BulkGet(ctx, state.BulkGetRequest{}); err != nil {
			t.Error(err)
		}
	}
	if a := state.AbilitiesOf(s).Lister; a != nil {
		out += "L"
		if _, err := a.List(ctx, state.ListRequest{}); err != nil {
			t.Error(err)
		}
	}
	if a := state.AbilitiesOf(s).Featurer; a != nil {
		out += "F"
		if got := a.Features(); len(got) != 1 || got[0] != "SPECIAL" {
			t.Errorf("Features() = %v", got)
		}
	}
	return out
}

func TestWrappers_HaveInterfacesOfStore(t *testing.T) {
	all := stores()
	if len(all) != 16 {
		t.Fatalf("%d stores, want one for each of the 16 sets", len(all))
	}
	for want, s := range all {
		if got := abilities(t, s); got != want {
			t.Fatalf("the test's store %q has %q", want, got)
		}
		configured := state.WithSettings(s, state.Settings{MaxValueSize: 1})
		if got := abilities(t, configured); got != want {
			t.Errorf("WithSettings turned abilities %q into %q", want, got)
		}
		if got := abilities(t, metrics(t, nil).Instrument(configured, "s", state.Eventual)); got != want {
			t.Errorf("Instrument turned abilities %q into %q", want, got)
		}
		if _, pretends := configured.(state.Transactor); pretends {
			t.Errorf("the wrapper of a store with abilities %q has a method Transact", want)
		}
	}
}

func TestFeaturesOf(t *testing.T) {
	for abilities, want := range map[string][]state.Feature{
		"F": {"SPECIAL"}, "": {state.FeatureETag}, "TB": {state.FeatureETag, state.FeatureTransactional},
	} {
		if diff := cmp.Diff(want, state.FeaturesOf(stores()[abilities])); diff != "" {
			t.Errorf("%q (-want +got)\n%s", abilities, diff)
		}
	}
}

func TestWithSettings_WithoutEffectReturnsStore(t *testing.T) {
	r := &recorder{}
	for _, s := range []state.Settings{{},
		{DefaultConsistency: state.Eventual, ActorStore: true, KeyPrefix: keyPrefix(t, "name")}} {
		if got := state.WithSettings(r, s); got != state.Store(r) {
			t.Errorf("WithSettings(%+v) wrapped the store", s)
		}
	}
}

func TestWithSettings_DefaultConsistency(t *testing.T) {
	for _, c := range []struct{ fallback, asked, want state.Consistency }{
		{state.Strong, state.DefaultConsistency, state.Strong}, {state.Strong, state.Eventual,
			state.Eventual}, {state.Strong, state.Strong, state.Strong},
		{state.DefaultConsistency, state.DefaultConsistency, state.Eventual}, {state.Eventual, state.Strong,
			state.Strong},
	} {
		a := newAble()
		s := state.WithSettings(a, state.Settings{DefaultConsistency: c.fallback, MaxValueSize: 10})
		options := state.ReadOptions{Consistency: c.asked}
		for name, level := range map[string]func() state.Consistency{
			"Get": func() state.Consistency {
				s.Get(t.Context(), state.GetRequest{ReadOptions: options}) //nolint:errcheck // never fails
				return a.last.(state.GetRequest).Consistency
			},
			"Set": func() state.Consistency {
				s.Set(t.Context(), state.SetRequest{Consistency: c.asked}) //nolint:errcheck // never fails
				return a.last.(state.SetRequest).Consistency
			},
			"Delete": func() state.Consistency {
				s.Delete(t.Context(), state.DeleteRequest{Consistency: c.asked}) //nolint:errcheck // never fails
				return a.last.(state.DeleteRequest).Consistency
			},
			"Transact": func() state.Consistency {
				tx := state.AbilitiesOf(s).Transactor
				tx.Transact(t.Context(), state.TransactRequest{Consistency: c.asked}) //nolint:errcheck // never fails
				return a.last.(state.TransactRequest).Consistency
			},
			"BulkGet": func() state.Consistency {
				bulk := state.AbilitiesOf(s).BulkGetter
				bulk.BulkGet(t.Context(), state.BulkGetRequest{ReadOptions: options}) //nolint:errcheck // never fails
				return a.last.(state.BulkGetRequest).Consistency
			},
			"List": func() state.Consistency {
				lister := state.AbilitiesOf(s).Lister
				lister.List(t.Context(), state.ListRequest{ReadOptions: options}) //nolint:errcheck // never fails
				return a.last.(state.ListRequest).Consistency
			},
		} {
			if got := level(); got != c.want {
				t.Errorf("%s with default %v, requested %v: the store got %v, want %v", name, c.fallback, c.asked, got,
					c.want)
			}
		}
	}
}

func TestWithSettings_DefaultTTL(t *testing.T) {
	a := newAble()
	s := state.WithSettings(a, state.Settings{DefaultTTL: time.Minute})
	given := []state.TTL{{}, {Set: true, Seconds: 5}, {Set: true}, {Set: true, At: new(time.Unix(1, 0))}}
	want := []state.TTL{{Set: true, Seconds: 60}, given[1], given[2], given[3]}
	var items []state.Write
	var ops []state.Operation
	for i, ttl := range given {
		items = append(items, state.Write{Key: fmt.Sprint(i), TTL: ttl})
		ops = append(ops, state.Operation{Write: items[i]},
			state.Operation{Kind: state.Remove, Write: state.Write{TTL: ttl}})
	}
	if _, err := s.Set(t.Context(), state.SetRequest{Items: items}); err != nil {
		t.Fatal(err)
	}
	for i, item := range a.last.(state.SetRequest).Items {
		if item.TTL != want[i] || item.Key != fmt.Sprint(i) {
			t.Errorf("item %d reached the store as %+v", i, item)
		}
	}
	tx := state.AbilitiesOf(s).Transactor
	if _, err := tx.Transact(t.Context(), state.TransactRequest{Operations: ops}); err != nil {
		t.Fatal(err)
	}
	for i, op := range a.last.(state.TransactRequest).Operations {
		expected := want[i/2]
		if op.Kind == state.Remove {
			expected = given[i/2]
		}
		if op.TTL != expected {
			t.Errorf("operation %d reached the store as %+v", i, op)
		}
	}
	if items[0].TTL.Set || ops[0].TTL.Set {
		t.Error("the caller's request was changed")
	}
}

func TestWithSettings_MaxValueSize(t *testing.T) {
	a := newAble()
	s := state.WithSettings(a, state.Settings{MaxValueSize: 3})
	write := func(key, value string) state.Write { return state.Write{Key: key, Value: []byte(value)} }
	if _, err := s.Set(t.Context(),
		state.SetRequest{Items: []state.Write{write("a", "123"), write("b", "")}}); err != nil {
		t.Fatal(err)
	}
	a.last = nil
	_, err := s.Set(t.Context(), state.SetRequest{Items: []state.Write{write("a", "123"), write("b", "1234")}})
	if !fault.Is(err, fault.TooLarge) || fault.KeyOf(err) != "b" || a.last != nil {
		t.Errorf("Set: %v, key %q; the store got %v", err, fault.KeyOf(err), a.last)
	}
	ops := []state.Operation{{Kind: state.Remove, Write: write("c", "ignored")}, {Write: write("d", "1234")}}
	_, err = state.AbilitiesOf(s).Transactor.Transact(t.Context(), state.TransactRequest{Operations: ops})
	if !fault.Is(err, fault.TooLarge) || fault.KeyOf(err) != "d" || a.last != nil {
		t.Errorf("Transact: %v, key %q; the store got %v", err, fault.KeyOf(err), a.last)
	}
}
