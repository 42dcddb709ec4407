package statetest

import (
	"fmt"

	"github.com/quorate/quorate/component/state"
)

func matrixCases() []testCase {
	return []testCase{
		{"ConcurrencyMatrix/Set", func(s *suite) { matrix(s, false, setOne) }},
		{"ConcurrencyMatrix/SetOfSeveral", func(s *suite) { matrix(s, false, setSeveral) }},
		{"ConcurrencyMatrix/Delete", func(s *suite) { matrix(s, true, deleteOne) }},
		{"ConcurrencyMatrix/TransactUpsert", func(s *suite) { matrix(s, false, transactOne(state.Upsert)) }},
		{"ConcurrencyMatrix/TransactDelete", func(s *suite) { matrix(s, true, transactOne(state.Remove)) }},
	}
}

// attempt is one conditional change that the matrix tries.
type attempt func(s *suite, w state.Write) error

func setOne(s *suite, w state.Write) error {
	_, err := s.trySet(w)
	return err
}

func setSeveral(s *suite, w state.Write) error {
	can[state.Transactor](s)
	_, err := s.trySet(write(w.Key+" before", "1"), w, write(w.Key+" after", "1"))
	if err != nil {
		s.wantAbsent(w.Key + " before")
		s.wantAbsent(w.Key + " after")
	}
	return err
}

func deleteOne(s *suite, w state.Write) error {
	return s.tryDelete(state.DeleteRequest{Key: w.Key, ETag: w.ETag, Concurrency: w.Concurrency})
}

func transactOne(kind state.OpKind) attempt {
	return func(s *suite, w state.Write) error {
		_, err := can[state.Transactor](s).Transact(s.ctx(), state.TransactRequest{
			Operations: []state.Operation{{Kind: kind, Write: w}}, Consistency: state.Strong,
		})
		return err
	}
}

// matrix tests every combination of three inputs: whether the key exists, which ETag is sent, and the concurrency mode.
// For each combination it calls perform, which deletes the key if isDelete is true, and otherwise sets it. The call
// must succeed under these conditions, and fail in all other cases:
//
//	an ETag         the key exists and has this ETag, in every mode
//	no ETag, first  a set: the key does not exist; a delete: always
//	no ETag, last   always
func matrix(s *suite, isDelete bool, perform attempt) {
	for _, existing := range []string{"absent", "deleted", "present"} {
		for _, sent := range []string{"none", "current", "stale", "0", "1", "18446744073709551616", "-1", "*", `"1"`,
			"no such ETag"} {
			for _, mode := range []state.Concurrency{state.LastWrite, state.FirstWrite} {
				if sent == "current" && existing != "present" || sent == "stale" && existing == "absent" {
					continue
				}
				key := s.key(fmt.Sprintf("%s %s %d", existing, sent, mode))
				current, stale := s.prepare(key, existing)
				w := state.Write{Key: key, Value: []byte("new"), ETag: sent, Concurrency: mode}
				switch sent {
				case "none":
					w.ETag = ""
				case "current":
					w.ETag = current
				case "stale":
					w.ETag = stale
				}
				if existing == "present" && w.ETag == current && sent != "current" {
					continue // the store happened to use this text as an ETag
				}
				allowed := sent == "current" || sent == "none" &&
					(mode == state.LastWrite || isDelete || existing != "present")
				s.expect(perform(s, w), allowed, isDelete, key, current)
			}
		}
	}
}

// prepare makes a key "absent", "deleted" or "present", according to the parameter existing. current is the ETag of the
// key, or "" if the key does not exist. stale is an earlier ETag of the key, or "" if the key never existed.
func (s *suite) prepare(key, existing string) (current, stale string) {
	s.Helper()
	if existing == "absent" {
		return "", ""
	}
	stale = s.put(key, "older")
	current = s.put(key, "old")
	if existing == "deleted" {
		s.delete(state.DeleteRequest{Key: key})
		return "", current
	}
	return current, stale
}

func (s *suite) expect(err error, allowed, isDelete bool, key, current string) {
	s.Helper()
	switch {
	case allowed && err != nil:
		s.Fatalf("%q: %v, want success", key, err)
	case allowed && isDelete:
		s.wantAbsent(key)
	case allowed:
		if item := s.wantValue(key, "new"); item.ETag == current {
			s.Fatalf("%q: the write did not change the ETag %q", key, current)
		}
	default:
		s.wantConflict(err, key)
		if current == "" {
			s.wantAbsent(key)
		} else if item := s.wantValue(key, "old"); item.ETag != current {
			s.Fatalf("%q: a refused change changed the ETag from %q to %q", key, current, item.ETag)
		}
	}
}
