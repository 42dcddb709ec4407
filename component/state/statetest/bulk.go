package statetest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/component/state"
)

func bulkCases() []testCase {
	return []testCase{
		{"BulkAnswersComeInRequestOrderWithDuplicates", bulkOrder},
		{"ABulkReadOfNothingIsEmpty", bulkEmpty},
		{"ABulkReadOfManyKeysAnswersEach", bulkMany},
	}
}

func (s *suite) bulk(parallelism int, keys ...string) []state.Item {
	s.Helper()
	items, err := can[state.BulkGetter](s).BulkGet(s.ctx(),
		state.BulkGetRequest{Keys: keys, Parallelism: parallelism, ReadOptions: strong()})
	s.must(err)
	if len(items) != len(keys) {
		s.Fatalf("BulkGet of %d keys gave %d items", len(keys), len(items))
	}
	return items
}

func bulkOrder(s *suite) {
	a, b, absent := s.key("a"), s.key("b"), s.key("absent")
	etagA := s.put(a, "1")
	etagB := s.set(state.Write{Key: b, Value: []byte{0xff}, ContentType: state.OctetStream})[0]
	keys := []string{b, absent, a, b, b, absent}
	want := map[string]state.Item{
		a: {Value: []byte("1"), ETag: etagA}, absent: {},
		b: {Value: []byte{0xff}, ETag: etagB, ContentType: state.OctetStream},
	}
	for _, parallelism := range []int{-1, 0, 1, 2, 100} {
		for i, item := range s.bulk(parallelism, keys...) {
			w := want[keys[i]]
			if item.Err != nil || item.Key != keys[i] || string(item.Value) != string(w.Value) || item.ETag != w.ETag ||
				item.ContentType != w.ContentType {
				s.Errorf("parallelism %d: item %d is %+v, want key %q and %+v", parallelism, i, item, keys[i], w)
			}
		}
	}
}

func bulkEmpty(s *suite) { s.bulk(0) }

func bulkMany(s *suite) {
	const n = 300
	var keys []string
	var items []state.Write
	for i := range n {
		keys = append(keys, s.key(fmt.Sprint("k", i)))
		if i%3 != 0 {
			items = append(items, write(keys[i], fmt.Sprint(i)))
		}
	}
	for some := range slices.Chunk(items, s.options.MaxOperations) {
		s.set(some...)
	}
	for i, item := range s.bulk(8, keys...) {
		if item.Found() != (i%3 != 0) || item.Found() && string(item.Value) != fmt.Sprint(i) || item.Err != nil {
			s.Fatalf("item %d is %+v", i, item)
		}
	}
}

func listCases() []testCase {
	return []testCase{
		{"AListingIsInByteOrder", listOrder},
		{"AListingCanBeReadInPagesOfAnySize", listPages},
		{"AListingKeepsToItsPrefix", listPrefix},
		{"AListingContinuesAfterAnyKey", listAfter},
		{"AListingFollowsChanges", listChanges},
	}
}

// list reads all pages and returns the keys. It removes this test's prefix from each key.
func (s *suite) list(prefix, after string, limit int) []string {
	s.Helper()
	out := []string{}
	for {
		page, err := can[state.Lister](s).List(s.ctx(),
			state.ListRequest{Prefix: prefix, After: after, Limit: limit, ReadOptions: strong()})
		s.must(err)
		if limit > 0 && len(page.Items) > limit {
			s.Fatalf("a page of at most %d has %d items", limit, len(page.Items))
		}
		for _, item := range page.Items {
			if item.ETag == "" {
				s.Fatalf("the listed key %q has no ETag", item.Key)
			}
			out = append(out, strings.TrimPrefix(item.Key, s.key("")))
			after = item.Key
		}
		if !page.More {
			return out
		}
		if len(page.Items) == 0 {
			s.Fatalf("an empty page after %q says that there is more", after)
		}
	}
}

func (s *suite) wantList(got []string, want ...string) {
	s.Helper()
	if !slices.Equal(got, want) {
		s.Fatalf("the listing is %q, want %q", got, want)
	}
}

func listOrder(s *suite) {
	can[state.Lister](s)
	names := s.nastyNames()
	for _, name := range names {
		s.put(s.key(name), "1")
	}
	slices.Sort(names)
	s.wantList(s.list(s.key(""), "", 0), names...)
}

func listPages(s *suite) {
	can[state.Lister](s)
	names := []string{}
	var items []state.Write
	for i := range 30 {
		names = append(names, fmt.Sprintf("k%02d", i))
		items = append(items, write(s.key(names[i]), "1"))
	}
	s.set(items...)
	for _, limit := range []int{1, 2, 7, 29, 30, 31, 1000} {
		s.wantList(s.list(s.key(""), "", limit), names...)
	}
}

func listPrefix(s *suite) {
	can[state.Lister](s)
	low := "a\x00"
	if s.options.TextKeys {
		low = "a\x01"
	}
	if refused := s.options.Unstorable; refused != nil && refused(s.key(low)) {
		low = "a x"
	}
	for _, name := range []string{"a", low, "a!", "ab", "b", "b1", "b2", "c", "|x"} {
		s.put(s.key(name), "1")
	}
	neighbours := []string{s.app, s.app + "|", s.app + "0||k", s.app + "}", strings.ToUpper(s.app) + "||k",
		s.app[:len(s.app)-1] + "||k"}
	for _, key := range neighbours {
		s.put(key, "1")
	}
	s.wantList(s.list(s.key("b"), "", 1), "b", "b1", "b2")
	s.wantList(s.list(s.key("a"), "", 2), "a", low, "a!", "ab")
	s.wantList(s.list(s.key("none"), "", 0))
	s.wantList(s.list(s.key("c"), "", 0), "c")
	s.wantList(s.list(s.key(""), "", 3), "a", low, "a!", "ab", "b", "b1", "b2", "c", "|x")
	for _, key := range neighbours {
		s.delete(state.DeleteRequest{Key: key})
	}
}

func listAfter(s *suite) {
	can[state.Lister](s)
	for _, name := range []string{"b", "d", "f"} {
		s.put(s.key(name), "1")
	}
	s.wantList(s.list(s.key(""), s.key("b"), 0), "d", "f")
	s.wantList(s.list(s.key(""), s.key("c"), 0), "d", "f")
	s.wantList(s.list(s.key(""), s.key("a"), 0), "b", "d", "f")
	s.wantList(s.list(s.key(""), "", 0), "b", "d", "f")
	s.wantList(s.list(s.key(""), s.key("f"), 0))
	s.wantList(s.list(s.key(""), s.key("zzz"), 0))
	s.wantList(s.list(s.key("d"), s.key("b"), 0), "d")
	s.wantList(s.list(s.key("b"), s.key("d"), 0))
	for _, name := range []string{"A||1||k", "A||2||k", "A|}"} {
		s.put(s.key(name), "1")
	}
	s.wantList(s.list(s.key(""), s.key("A||\xff"), 0), "A|}", "b", "d", "f")
	s.wantList(s.list(s.key(""), s.key("A||\xff"), 1), "A|}", "b", "d", "f")
	s.wantList(s.list(s.key("c"), s.key("A||\xff"), 0))
	s.wantList(s.list(s.key("d"), s.key("A||\xff"), 0), "d")
}

func listChanges(s *suite) {
	can[state.Lister](s)
	etag := s.put(s.key("a"), "1")
	s.put(s.key("b"), "1")
	s.delete(state.DeleteRequest{Key: s.key("a"), ETag: etag})
	s.wantList(s.list(s.key(""), "", 0), "b")
	s.put(s.key("c"), "1")
	s.put(s.key("a"), "2")
	s.wantList(s.list(s.key(""), "", 0), "a", "b", "c")
}
