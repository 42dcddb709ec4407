package api_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
)

// sparing is a store that returns at most two keys at once, whatever the limit, and counts calls.
type sparing struct {
	*inmemory.Store
	asked int
}

func (s *sparing) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	s.asked++
	r.Limit = min(r.Limit, 2)
	return s.Store.List(ctx, r)
}

// everyPage walks through a listing and returns all keys.
func everyPage(t *testing.T, s *api.State, r api.ListRequest) []string {
	t.Helper()
	var out []string
	for pages := 0; ; pages++ {
		page, err := s.List(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if r.Limit > 0 && len(page.Items) > r.Limit || pages > 1000 {
			t.Fatalf("page %d has %d items", pages, len(page.Items))
		}
		for _, item := range page.Items {
			out = append(out, item.Key)
		}
		if r.Token = page.Token; r.Token == "" {
			return out
		}
	}
}

func TestList_HasEveryOwnKeyOnceInOrder(t *testing.T) {
	t.Parallel()
	store := &sparing{Store: inmemory.Open(inmemory.Options{})}
	t.Cleanup(func() { _ = store.Close() })
	s := service(store, api.Limits{}, nil)
	own := []string{"", "a", "a|", "a|b", "a/1", "a/2", "b", "Cat", "Cat|", "z", "é", "\U0010ffff", "|", "|a"}[1:]
	var writes []state.Write
	write := func(stored string) {
		writes = append(writes, state.Write{Key: stored, Value: []byte("1")})
	}
	for _, key := range own {
		write("shop||" + key)
	}
	for i := range 50 {
		write(fmt.Sprintf("shop||Cat||%d||k", i))
		write(fmt.Sprintf("shop||a||%d||k", i))
	}
	write("shop||zebra||1||k") // after the last own key with a lower byte
	write("shop2||other")
	write("other||a")
	write("plain")
	if _, err := store.Set(t.Context(), state.SetRequest{Items: writes}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(own)
	for _, prefix := range []string{"", "a", "a|", "Cat", "C", "z", "zz", "|"} {
		want := slices.DeleteFunc(slices.Clone(own), func(k string) bool { return !strings.HasPrefix(k, prefix) })
		for _, limit := range []int{0, 1, 2, 3, 1000} {
			got := everyPage(t, s, api.ListRequest{Store: "orders", Prefix: prefix, Limit: limit})
			if diff := cmp.Diff(slices.Clip(want), got); diff != "" && len(got)+len(want) > 0 {
				t.Errorf("prefix %q, limit %d (-want +got):\n%s", prefix, limit, diff)
			}
		}
	}
	store.asked = 0
	everyPage(t, s, api.ListRequest{Store: "orders", Limit: 1000})
	if store.asked > len(own)+5 {
		t.Errorf("%d rounds for %d keys: actor state is not jumped over", store.asked, len(own))
	}
}

// empty is a store that returns no keys and reports that there are more.
type empty struct{ state.Store }

func (empty) List(context.Context, state.ListRequest) (state.Page, error) {
	return state.Page{More: true}, nil
}

func TestList_EndsOnEmptyPage(t *testing.T) {
	t.Parallel()
	page, err := service(empty{}, api.Limits{}, nil).List(t.Context(), api.ListRequest{Store: "orders"})
	if err != nil || len(page.Items) != 0 || page.Token != "" {
		t.Errorf("%+v, %v", page, err)
	}
}

// Callers can send any token. No token may reach keys outside the listing or cause a panic.
func FuzzPageToken(f *testing.F) {
	store := inmemory.Open(inmemory.Options{})
	f.Cleanup(func() { _ = store.Close() })
	for _, key := range []string{"shop||a", "shop||b", "shop||Cat||1||k", "other||secret", "shop2||secret"} {
		if _, err := store.Set(f.Context(), state.SetRequest{Items: []state.Write{{Key: key,
			Value: []byte("1")}}}); err != nil {
			f.Fatal(err)
		}
	}
	s := service(store, api.Limits{}, nil)
	first, err := s.List(f.Context(), api.ListRequest{Store: "orders", Limit: 1})
	if err != nil || first.Token == "" {
		f.Fatal(first, err)
	}
	f.Add(first.Token, "")
	f.Add("", "a")
	f.Add("MQ", "")
	f.Fuzz(func(t *testing.T, token, prefix string) {
		page, err := s.List(t.Context(), api.ListRequest{Store: "orders", Token: token, Prefix: prefix})
		if err != nil && codeOf(t, err) != api.CodeMalformed {
			t.Errorf("%v", err)
		}
		for _, item := range page.Items {
			if item.Key != "a" && item.Key != "b" || !strings.HasPrefix(item.Key, prefix) {
				t.Errorf("key %q with prefix %q", item.Key, prefix)
			}
		}
	})
}
