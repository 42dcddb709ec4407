package outside_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/testutil"
)

// heap is a fake database whose keys are not in order.
type heap struct {
	keys  map[string]bool
	scans int
}

func (h *heap) Scan(_ context.Context, prefix string, metadata map[string]string, found func([]string)) error {
	h.scans++
	for k := range h.keys {
		if strings.HasPrefix(k, prefix) && metadata["without"] != k {
			found([]string{k, k})
		}
	}
	return nil
}

func (h *heap) Describe(_ context.Context, keys []string, _ map[string]string) ([]state.Item, error) {
	out := make([]state.Item, len(keys))
	for i, k := range keys {
		if out[i].Key = k; h.keys[k] {
			out[i].ETag = "1"
		}
	}
	return out, nil
}

func TestListing_ScansOnceForManyPages(t *testing.T) {
	t.Parallel()
	h := &heap{keys: map[string]bool{}}
	var want []string
	for i := range 500 {
		k := fmt.Sprintf("a||%03d", i)
		h.keys[k] = true
		if i/10 != 7 { // deleted after the first page
			want = append(want, k)
		}
	}
	l := outside.NewListing(h)
	defer l.Close()
	page := func(after, without string) (keys []string, more bool) {
		t.Helper()
		p, err := l.Page(t.Context(), state.ListRequest{Prefix: "a||", After: after, Limit: 10,
			ReadOptions: state.ReadOptions{Metadata: map[string]string{"without": without}}}, without)
		testutil.Must(t, err)
		for _, item := range p.Items {
			keys = append(keys, item.Key)
		}
		return keys, p.More
	}
	all, more := page("", "")
	for i := range 10 {
		delete(h.keys, fmt.Sprintf("a||%03d", 70+i))
	}
	for more {
		var next []string
		next, more = page(all[len(all)-1], "")
		all = append(all, next...)
	}
	if diff := cmp.Diff(want, all); diff != "" || h.scans != 1 {
		t.Errorf("%d scans; %s", h.scans, diff)
	}
	h.keys["a||0"] = true
	if first, _ := page("", ""); first[0] != "a||0" {
		t.Errorf("a new listing begins with %s", first[0])
	}
	if other, _ := page("a||010", "a||011"); other[0] != "a||012" {
		t.Errorf("a listing of another scope continues with %s", other[0])
	}
	scans := h.scans
	if last, more := page("a||499", "a||011"); last != nil || more || h.scans != scans+1 {
		t.Errorf("after the last key follows %v, with %d scans", last, h.scans-scans)
	}
}

func TestListing_HasABoundOnWhatItKeeps(t *testing.T) {
	t.Parallel()
	h := &heap{keys: map[string]bool{}}
	for i := range 3000 {
		h.keys[fmt.Sprintf("%04d", i)+strings.Repeat("x", 16<<10)] = true // 48 MiB
	}
	l := outside.NewListing(h)
	defer l.Close()
	seen := 0
	for after, more := "", true; more; {
		p, err := l.Page(t.Context(), state.ListRequest{After: after}, "")
		testutil.Must(t, err)
		seen, more, after = seen+len(p.Items), p.More, p.Items[len(p.Items)-1].Key
	}
	if seen != 3000 || h.scans < 3 {
		t.Errorf("%d keys in %d scans, want 3000 in some", seen, h.scans)
	}
}
