package kv

import (
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/cockroachdb/pebble/v2"
)

// maxTerms is how many terms a machine records. If there are more, it records only the newest. The number is part of
// the format.
const maxTerms = 1024

// terms records for each term the index of its last applied command. Only one leader appends entries of a term.
// Therefore, the state includes the command at index i of term t if and only if i is at most the recorded index of t.
type terms struct {
	closed []termEnd // ascending; never changed in place, because readers share it
	now    termEnd   // term of the newest command; zero = none
	saved  termEnd   // the value of now that is in the database or in the current batch
}

// termEnd is a term with the index of its last applied command.
type termEnd struct{ term, last uint64 }

// note records that the command at the given index and term was applied. keep is the maximum number of recorded terms.
// If there are more, note deletes the oldest ones. Terms never decrease along a log.
func (t *terms) note(txn *txn, index, term uint64, keep int) {
	if term != t.now.term {
		t.save(txn)
		if t.now.term != 0 {
			t.closed = append(t.closed[:len(t.closed):len(t.closed)], t.now)
		}
		if drop := len(t.closed) + 1 - keep; drop > 0 {
			for _, e := range t.closed[:drop] {
				txn.delete(appendNumberKey(nil, tableTerm, e.term))
			}
			t.closed = t.closed[drop:]
		}
	}
	t.now = termEnd{term, index}
}

// save adds the record of the newest term to the batch of txn, if it has changed.
func (t *terms) save(txn *txn) {
	if t.now == t.saved {
		return
	}
	txn.set(appendNumberKey(nil, tableTerm, t.now.term), binary.BigEndian.AppendUint64(nil, t.now.last))
	t.saved = t.now
}

// forget deletes all recorded terms. It is called when these terms belong to another log.
func (t *terms) forget(txn *txn) {
	for _, e := range append(t.closed[:len(t.closed):len(t.closed)], t.now) {
		txn.delete(appendNumberKey(nil, tableTerm, e.term))
	}
	*t = terms{}
}

func (t *terms) load(db *pebble.DB) error {
	return scan(db, tableTerm, func(key, value []byte) error {
		term, ok := parseNumberKey(key)
		if !ok || len(value) != 8 {
			return fmt.Errorf("damaged record of a term: key %x, %d bytes", key, len(value))
		}
		if t.now.term != 0 {
			t.closed = append(t.closed, t.now)
		}
		t.now = termEnd{term, binary.BigEndian.Uint64(value)}
		t.saved = t.now
		return nil
	})
}

// Wrote reports whether this state includes the command that the leader of the given term appended at the given index.
// known is false if this cannot be decided: the command may still follow, or the term is older than all recorded terms.
// A machine records the newest 1024 terms since the last call of SetApplied.
func (m *Machine) Wrote(term, index uint64) (wrote, known bool) {
	s := m.state.Load()
	if len(s.terms.closed) > 0 && term < s.terms.closed[0].term || len(s.terms.closed) == 0 && term < s.terms.now.term {
		return false, false
	}
	if term >= s.terms.now.term { // more commands of this term may follow
		wrote = term == s.terms.now.term && index <= s.terms.now.last
		return wrote, wrote
	}
	closed := s.terms.closed
	i := sort.Search(len(closed), func(i int) bool { return closed[i].term >= term })
	wrote = i < len(closed) && closed[i].term == term && index <= closed[i].last
	return wrote, wrote || index <= s.applied
}
