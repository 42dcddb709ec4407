package statetest

import (
	"fmt"

	"github.com/quorate/quorate/component/state"
)

func writeCases() []testCase {
	return []testCase{
		{"AWriteReturnsTheETagThatReadsShow", etagOfWrite},
		{"AnETagIsNeverUsedTwice", etagsAreUnique},
		{"AnETagDoesNotComeBackAfterDeleteAndRecreate", etagsAfterDelete},
		{"ASetOfSeveralItemsWritesAll", severalItems},
		{"ASetOfSeveralItemsWritesNoneOnAConflict", severalItemsConflict},
		{"TheLastOfSeveralWritesToAKeyWins", duplicateItems},
		{"ConditionsOfASetAreCheckedBeforeIt", conditionsBeforeSet},
		{"DeletingAnAbsentKeyIsNoError", deleteAbsent},
		{"AnOverwriteReplacesTheWholeValue", overwrite},
	}
}

func etagOfWrite(s *suite) {
	key := s.key("k")
	first := s.put(key, "1")
	if got := s.wantValue(key, "1").ETag; got != first {
		s.Errorf("read shows ETag %q, the write returned %q", got, first)
	}
	second := s.put(key, "2")
	if got := s.wantValue(key, "2").ETag; got != second || second == first {
		s.Errorf("after an update read shows ETag %q; writes returned %q, then %q", got, first, second)
	}
}

func etagsAreUnique(s *suite) {
	seen := map[string]string{}
	note := func(etag, what string) {
		s.Helper()
		if etag == "" {
			s.Fatalf("%s has no ETag", what)
		}
		if before, ok := seen[etag]; ok {
			s.Fatalf("%s has the ETag %q of %s", what, etag, before)
		}
		seen[etag] = what
	}
	for i := range 20 {
		key := s.key(fmt.Sprint("k", i%4))
		note(s.put(key, "same value"), fmt.Sprintf("write %d", i))
		if i%5 == 0 {
			s.delete(state.DeleteRequest{Key: key})
		}
		etags := s.set(write(s.key("x"), "1"), write(s.key("y"), "1"), write(s.key("x"), "2"))
		if s.options.SharedETags {
			etags = etags[:1]
		}
		for n, etag := range etags {
			note(etag, fmt.Sprintf("item %d of set %d", n, i))
		}
	}
}

func etagsAfterDelete(s *suite) {
	key := s.key("k")
	old := s.put(key, "1")
	s.delete(state.DeleteRequest{Key: key})
	again := s.put(key, "1")
	if again == old {
		s.Fatalf("the key was deleted and made again with the same ETag %q", old)
	}
	_, err := s.trySet(state.Write{Key: key, Value: []byte("2"), ETag: old})
	s.wantConflict(err, key)
	s.wantConflict(s.tryDelete(state.DeleteRequest{Key: key, ETag: old}), key)
	s.wantValue(key, "1")
}

func severalItems(s *suite) {
	var items []state.Write
	for i := range 50 {
		items = append(items, write(s.key(fmt.Sprint("k", i)), fmt.Sprint(i)))
	}
	etags := s.set(items...)
	for i, item := range items {
		if got := s.wantValue(item.Key, string(item.Value)); got.ETag != etags[i] {
			s.Errorf("item %d has ETag %q, the write returned %q in its place", i, got.ETag, etags[i])
		}
	}
}

func severalItemsConflict(s *suite) {
	can[state.Transactor](s) // without transactions a set of several items need not be atomic
	keys := []string{s.key("a"), s.key("b"), s.key("c")}
	first := s.put(keys[0], "1")
	s.put(keys[1], "1")
	_, err := s.trySet(state.Write{Key: keys[0], Value: []byte("2"), ETag: first},
		state.Write{Key: keys[1], Value: []byte("2"), ETag: "no such ETag"}, write(keys[2], "2"))
	s.wantConflict(err, keys[1])
	if got := s.wantValue(keys[0], "1").ETag; got != first {
		s.Errorf("a refused set changed the ETag of %q from %q to %q", keys[0], first, got)
	}
	s.wantValue(keys[1], "1")
	s.wantAbsent(keys[2])
}

func duplicateItems(s *suite) {
	key := s.key("k")
	etags := s.set(write(key, "1"), write(s.key("other"), "x"), write(key, "2"), write(key, "3"))
	if got := s.wantValue(key, "3").ETag; got != etags[3] {
		s.Errorf("ETag is %q, that of the last write %q", got, etags[3])
	}
}

func conditionsBeforeSet(s *suite) {
	can[state.Transactor](s)
	key := s.key("k")
	create := func(value string) state.Write {
		return state.Write{Key: key, Value: []byte(value), Concurrency: state.FirstWrite}
	}
	s.set(create("1"), create("2"))
	etag := s.wantValue(key, "2").ETag
	s.set(state.Write{Key: key, Value: []byte("3"), ETag: etag}, state.Write{Key: key, Value: []byte("4"), ETag: etag})
	s.wantValue(key, "4")
}

func deleteAbsent(s *suite) {
	for _, mode := range []state.Concurrency{state.LastWrite, state.FirstWrite} {
		s.delete(state.DeleteRequest{Key: s.key("absent"), Concurrency: mode})
	}
}

func overwrite(s *suite) {
	key := s.key("k")
	s.put(key, `{"long":"value with much in it"}`)
	s.put(key, "1")
	s.wantValue(key, "1")
	s.put(key, "")
	s.wantValue(key, "")
}
