package kv

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// setHash is a hash of a set of records that does not depend on their order. It consists of the sums, modulo 2^64, of
// two independent hashes of every record. So adding or removing a record takes constant time. The machine updates the
// hash with every record that it writes. If the records on disk or on another replica have a different hash, some data
// is wrong.
//
// The hash detects bugs, memory errors and disk errors, not attackers.
type setHash [2]uint64

func (s *setHash) add(o setHash) { s[0] += o[0]; s[1] += o[1] }
func (s *setHash) sub(o setHash) { s[0] -= o[0]; s[1] -= o[1] }

// setSeeds are the seeds of the two hashes. They are part of the format.
var setSeeds = [...]uint64{0x51756f72_61746531, 0x51756f72_61746532}

// member returns the hash of one data record. key has no table byte, so a record has the same hash in both sets of
// tables.
func member(key, value []byte) (h setHash) {
	var d xxhash.Digest
	var size [4]byte
	binary.BigEndian.PutUint32(size[:], uint32(len(key))) //nolint:gosec // keys are short
	for i, seed := range setSeeds {
		d.ResetWithSeed(seed)
		_, _ = d.Write(size[:])
		_, _ = d.Write(key)
		_, _ = d.Write(value)
		h[i] = d.Sum64()
	}
	return h
}

// sums are the set hashes of a machine's records.
type sums struct {
	data  setHash // of the live data table
	stage setHash // of the other table, which a restore fills
}

// replace updates the set hash of the live records after one record has changed. The parameter out is the hash of the
// previous record, and the parameter in is the hash of the new record. Pass the zero setHash for a record that does not
// exist.
func (s *sums) replace(out, in setHash) {
	s.data.sub(out)
	s.data.add(in)
}

// swap updates the set hashes when a restore commits: the hash of the restored records becomes the hash of the live
// records. swap adds kept, the hash of the records of SystemStore, because a restore keeps these records.
func (s *sums) swap(kept setHash) {
	s.data, s.stage = s.stage, setHash{}
	s.data.add(kept)
}

// Digest is a hash of the whole state of a machine. It covers the rolling hash of entries and results, the set hash
// of the records, the histories, and the counters.
type Digest [2]uint64

// String returns the digest as 32 hexadecimal digits.
func (d Digest) String() string { return fmt.Sprintf("%016x%016x", d[0], d[1]) }

// Mark is the digest of a machine after it has applied the entry at Index. All replicas compute marks at the same
// entries, so marks with the same Index must be equal.
type Mark struct {
	Index  uint64
	Digest Digest
}

// keepMarks is the maximum number of marks that a machine keeps. If there are more, the machine keeps only the newest.
const keepMarks = 16

// mark adds a Mark to w.marks if the current entry has advanced cluster time past a multiple of w.period. previous is
// the cluster time before that entry.
func (w *writer) mark(previous uint64) {
	if w.period == 0 || previous/w.period == w.meta.clock/w.period {
		return
	}
	w.marks = append(w.marks, Mark{Index: w.meta.applied, Digest: w.digest()})
}

func (w *writer) digest() (d Digest) {
	b := w.key[:0]
	fields := w.meta.fields()
	b = w.histories.digest(appendNumbers(b, fields[:]))
	for i, seed := range setSeeds {
		var x xxhash.Digest
		x.ResetWithSeed(seed)
		_, _ = x.Write(b)
		d[i] = x.Sum64()
	}
	w.key = b
	return d
}

// remember adds the marks of this Apply to those that Marks returns.
func (m *Machine) remember(fresh []Mark) {
	if len(fresh) == 0 {
		return
	}
	var have []Mark
	if p := m.marks.Load(); p != nil {
		have = *p
	}
	all := append(append(make([]Mark, 0, len(have)+len(fresh)), have...), fresh...)
	all = all[max(0, len(all)-keepMarks):]
	m.marks.Store(&all)
}

// Marks returns the newest marks since the machine was opened, oldest first. There are at most keepMarks. The caller
// must not change the slice.
func (m *Machine) Marks() []Mark {
	if p := m.marks.Load(); p != nil {
		return *p
	}
	return nil
}

// MarkDue reports whether an entry with the given cluster time would create a useful mark. A mark is useful only if
// entries were applied since the newest mark.
func (m *Machine) MarkDue(now uint64) bool {
	period, s := m.period, m.state.Load()
	if period == 0 || now/period == s.clock/period {
		return false
	}
	marks := m.Marks()
	return s.hash != 0 && (len(marks) == 0 || marks[len(marks)-1].Index < s.applied)
}

// share returns what one record adds to a set hash. It returns the zero setHash if the set hashes are off.
func (w *writer) share(key, value []byte) setHash {
	if w.unhashed {
		return setHash{}
	}
	return member(key, value)
}
