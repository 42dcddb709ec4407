package statetest

import (
	"fmt"

	"github.com/quorate/quorate/component/state"
)

func transactCases() []testCase {
	return []testCase{
		{"ATransactionAppliesAllOperationsInOrder", transactOrder},
		{"ATransactionWithAFailedConditionChangesNothing", transactConflict},
		{"ConditionsOfATransactionAreCheckedBeforeIt", transactConditions},
		{"ATransactionReturnsAnETagForEachUpsert", transactETags},
		{"ALargeTransactionIsAtomic", transactLarge},
	}
}

func upsert(key, value string) state.Operation { return state.Operation{Write: write(key, value)} }

func remove(key string) state.Operation {
	return state.Operation{Kind: state.Remove, Write: state.Write{Key: key}}
}

func (s *suite) tryTransact(ops ...state.Operation) (state.Written, error) {
	s.Helper()
	return can[state.Transactor](s).Transact(s.ctx(), state.TransactRequest{Operations: ops, Consistency: state.Strong})
}

func (s *suite) transact(ops ...state.Operation) []string {
	s.Helper()
	w, err := s.tryTransact(ops...)
	s.must(err)
	return s.etags(w, ops)
}

func transactOrder(s *suite) {
	a, b, c, d := s.key("a"), s.key("b"), s.key("c"), s.key("d")
	s.put(b, "old")
	s.transact(upsert(a, "1"), upsert(a, "2"), remove(b), upsert(b, "3"), upsert(c, "4"), remove(c), remove(d),
		upsert(d, "5"), upsert(d, "6"))
	s.wantValue(a, "2")
	s.wantValue(b, "3")
	s.wantAbsent(c)
	s.wantValue(d, "6")
}

func transactConflict(s *suite) {
	a, b, c := s.key("a"), s.key("b"), s.key("c")
	etag := s.put(a, "1")
	s.put(b, "1")
	failing := []state.Operation{
		{Write: state.Write{Key: b, Value: []byte("2"), ETag: "no such ETag"}},
		{Write: state.Write{Key: b, Value: []byte("2"), Concurrency: state.FirstWrite}},
		{Kind: state.Remove, Write: state.Write{Key: b, ETag: "no such ETag"}},
	}
	for _, bad := range failing {
		_, err := s.tryTransact(upsert(a, "2"), remove(a), upsert(c, "2"), bad, upsert(c, "3"))
		s.wantConflict(err, b)
		if got := s.wantValue(a, "1").ETag; got != etag {
			s.Errorf("a refused transaction changed an ETag from %q to %q", etag, got)
		}
		s.wantValue(b, "1")
		s.wantAbsent(c)
	}
}

func transactConditions(s *suite) {
	key := s.key("k")
	etag := s.put(key, "1")
	create := state.Operation{Write: state.Write{Key: key, Value: []byte("2"), Concurrency: state.FirstWrite}}
	_, err := s.tryTransact(remove(key), create)
	s.wantConflict(err, key)
	s.wantValue(key, "1")
	s.transact(upsert(key, "2"), state.Operation{Write: state.Write{Key: key, Value: []byte("3"), ETag: etag}})
	s.wantValue(key, "3")
	s.delete(state.DeleteRequest{Key: key})
	s.transact(upsert(key, "4"), create)
	s.wantValue(key, "2")
}

func transactETags(s *suite) {
	a, b, c := s.key("a"), s.key("b"), s.key("c")
	s.put(b, "1")
	etags := s.transact(upsert(a, "1"), remove(b), upsert(c, "1"))
	if len(etags) != 3 || etags[1] != "" {
		s.Fatalf("ETags of upsert, delete, upsert are %q; want three, the second empty", etags)
	}
	for i, key := range map[int]string{0: a, 2: c} {
		if got := s.wantValue(key, "1").ETag; got != etags[i] {
			s.Errorf("%q has ETag %q, the transaction returned %q in place %d", key, got, etags[i], i)
		}
	}
}

func transactLarge(s *suite) {
	size := s.options.MaxOperations
	ops := make([]state.Operation, 0, size)
	for i := range size - 1 {
		ops = append(ops, upsert(s.key(fmt.Sprint("k", i)), "1"))
	}
	bad := state.Operation{Kind: state.Remove, Write: state.Write{Key: s.key("last"), ETag: "no such ETag"}}
	_, err := s.tryTransact(append(ops, bad)...)
	s.wantConflict(err, s.key("last"))
	s.wantAbsent(s.key("k0"))
	s.wantAbsent(s.key(fmt.Sprint("k", size-2)))
	s.transact(append(ops, upsert(s.key("last"), "1"))...)
	s.wantValue(s.key("k0"), "1")
	s.wantValue(s.key(fmt.Sprint("k", size-2)), "1")
	s.wantValue(s.key("last"), "1")
}
