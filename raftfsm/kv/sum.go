package kv

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"
)

// setHash is a hash of a set of records that does not depend on their order. It consists of the sums, modulo 2^64,
// of two independent hashes of every record. So adding or removing a record takes constant time. The machine updates
// the hash with every record that it writes. A different hash over the records on disk, or on another replica, shows
// that some data is wrong.
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

// sums are the set hashes of a machine's records. Each Pebble batch that changes records also stores the new sums.
// An old build changes records without updating the sums; they are then computed again.
type sums struct {
	known bool    // data is the hash of all records; if false, only of the changes since generation gen began
	gen   uint64  // of an unknown sum: incremented whenever all records are replaced
	data  setHash // of the live data table
	stage setHash // of the other table, which a restore fills
	off   bool    // set by a benchmark of their cost
}

func sumKey() []byte { return []byte{tableMeta, 's'} }

const (
	sumFormat = 1
	sumSize   = 2 + 3*8 + 2*16
)

// append encodes the sums together with the state last that they belong to.
func (s *sums) append(dst []byte, last *meta) []byte {
	dst = append(dst, sumFormat, flag(s.known))
	for _, n := range [...]uint64{last.applied, last.hash, s.gen, s.data[0], s.data[1], s.stage[0], s.stage[1]} {
		dst = binary.BigEndian.AppendUint64(dst, n)
	}
	return dst
}

// parseSums decodes the output of sums.append. ok is false if the sums do not belong to the state with the given
// meta record.
func parseSums(b []byte, last *meta) (s sums, ok bool) {
	if len(b) != sumSize || b[0] != sumFormat {
		return sums{}, false
	}
	n := func(i int) uint64 { return binary.BigEndian.Uint64(b[2+8*i:]) }
	if n(0) != last.applied || n(1) != last.hash {
		return sums{}, false
	}
	return sums{known: b[1] == 1, gen: n(2), data: setHash{n(3), n(4)}, stage: setHash{n(5), n(6)}}, true
}

// loadSums reads the sums from the database. If there are records but no valid sums, it starts with sums of zero for
// later changes. Verify later adds the hash of the existing records.
func (w *writer) loadSums() error {
	raw, closer, err := w.txn.db.Get(sumKey())
	if err == nil {
		s, ok := parseSums(raw, &w.meta)
		_ = closer.Close() // a reference to memory
		if ok && s.known {
			w.sums = s
			return nil
		}
	} else if !errors.Is(err, pebble.ErrNotFound) {
		return err
	}
	w.sums = sums{known: w.meta.keys == 0 && w.meta.replaced.stage == 0}
	return w.txn.db.Set(sumKey(), w.sums.append(nil, &w.meta), pebble.NoSync)
}

// base is a hash that Verify has computed, to be merged into the sums (see adopt). It covers the records that existed
// at the beginning of generation gen; sums.data covers the later changes. Generation 0 begins when loadSums finds no
// valid sums. A restore begins another generation if it commits before the hash of all records is known.
type base struct {
	gen  uint64
	data setHash
}

// adopt adds b to the sums, which then cover all records. b is the result of Verify, or nil. adopt ignores b if a
// restore is running, or has replaced the records since Verify began.
func (w *writer) adopt(b *base) {
	if b == nil || w.sums.known || b.gen != w.sums.gen || w.meta.replaced.stage != 0 {
		return
	}
	w.sums.data.add(b.data)
	w.sums.known = true
}

// replace updates the sum for a record: out is subtracted, in is added.
func (s *sums) replace(out, in setHash) {
	s.data.sub(out)
	s.data.add(in)
}

// swap replaces the sums when a restore commits. The parameter kept is the hash of the records of SystemStore, which a
// restore does not replace. If the hash of all records was known, the new sum covers the restored records and those of
// SystemStore. Otherwise it is zero, and another generation begins (see base).
func (s *sums) swap(kept setHash) {
	if s.known {
		s.data = s.stage
		s.data.add(kept)
	} else {
		s.gen, s.data = s.gen+1, setHash{}
	}
	s.stage = setHash{}
}

// Digest is a hash of the whole state of a machine. It covers the rolling hash of entries and results, the set hash
// of the records, and the counters.
type Digest [2]uint64

// String returns the digest as 32 hexadecimal digits.
func (d Digest) String() string { return fmt.Sprintf("%016x%016x", d[0], d[1]) }

// Mark is the digest of a machine after it has applied the entry at Index. All replicas compute marks at the same
// entries, so marks with the same Index must be equal.
type Mark struct {
	Index  uint64
	Digest Digest
}

// keepMarks is how many marks a machine keeps. It keeps the newest.
const keepMarks = 16

// mark appends a Mark to w.marks if the current entry has moved cluster time past a multiple of w.period. The
// parameter before is the cluster time before that entry.
func (w *writer) mark(before uint64) {
	if w.period == 0 || !w.sums.known || before/w.period == w.meta.clock/w.period {
		return
	}
	w.marks = append(w.marks, Mark{Index: w.meta.applied, Digest: w.digest()})
}

func (w *writer) digest() (d Digest) {
	b := w.key[:0]
	m := &w.meta
	b = appendNumbers(b, []*uint64{&m.applied, &m.revision, &m.clock, &m.keys, &m.hash, &m.clientFirst, &m.clientNext})
	replaced := m.replaced.fields()
	b = appendNumbers(b, replaced[:])
	for _, s := range [...]setHash{w.sums.data, w.sums.stage} {
		b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, s[0]), s[1])
	}
	b = w.histories.digest(b)
	for i, seed := range setSeeds {
		var x xxhash.Digest
		x.ResetWithSeed(seed)
		_, _ = x.Write(b)
		d[i] = x.Sum64()
	}
	w.key = b
	return d
}

// remember publishes the marks of this Apply.
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

// Marks returns the newest marks since the machine was opened, oldest first, at most keepMarks. The caller must not
// change the slice.
func (m *Machine) Marks() []Mark {
	if p := m.marks.Load(); p != nil {
		return *p
	}
	return nil
}

// Summed reports whether the hash of all records is known. The machine creates no marks before that.
func (m *Machine) Summed() bool { return m.state.Load().summed }

// MarkDue reports whether an entry with the given cluster time would create a new mark. It returns false if the
// state has not changed since the newest mark.
func (m *Machine) MarkDue(now uint64) bool {
	period, s := m.period, m.state.Load()
	if period == 0 || now/period == s.clock/period {
		return false
	}
	marks := m.Marks()
	return s.hash != 0 && (len(marks) == 0 || marks[len(marks)-1].Index < s.applied)
}

// share returns the contribution of a record to a sum.
func (w *writer) share(key, value []byte) setHash {
	if w.sums.off {
		return setHash{}
	}
	return member(key, value)
}
