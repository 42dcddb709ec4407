package kv

import (
	"encoding/binary"
	"errors"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"
)

// setHash is a hash of a set of records that does not depend on their order: the sums, each
// modulo 2^64, of two independent hashes of every member. Adding and taking away a record
// costs the same whatever the size of the set, and what stands in the sum is what the
// machine meant to store: a sum that differs from that of the records, or from that of
// another replica, shows that something else is stored.
//
// It is made against accidents, a fault of the machine or of its memory and disk, and not
// against somebody who chooses records so that their sums agree: whoever can change the
// records of one replica can change its sum too.
type setHash [2]uint64

func (s *setHash) add(o setHash) { s[0] += o[0]; s[1] += o[1] }
func (s *setHash) sub(o setHash) { s[0] -= o[0]; s[1] -= o[1] }

// setSeeds make two hashes out of one function. Part of the format.
var setSeeds = [...]uint64{0x51756f72_61746531, 0x51756f72_61746532}

// member hashes a data record. key is without its table, for the record is the same one in
// either set of tables.
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

// sums are the set hashes of a machine's records. They stand in a record of their own beside
// meta, in the same Pebble batch, and say to which state they belong: a build that does not
// know them leaves them behind, and the next one that does sees it and counts anew.
type sums struct {
	known bool    // data is the hash of all records; otherwise that of what changed since gen began
	gen   uint64  // of an unknown sum: raised whenever all records were replaced
	data  setHash // of the live data table
	stage setHash // of the other one, which a restore fills
	off   bool    // for a benchmark that shows what they cost
}

func sumKey() []byte { return []byte{tableMeta, 's'} }

const (
	sumFormat = 1
	sumSize   = 2 + 3*8 + 2*16
)

// append encodes the sums of the state that last describes.
func (s *sums) append(dst []byte, last *meta) []byte {
	dst = append(dst, sumFormat, flag(s.known))
	for _, n := range [...]uint64{last.applied, last.hash, s.gen, s.data[0], s.data[1], s.stage[0], s.stage[1]} {
		dst = binary.BigEndian.AppendUint64(dst, n)
	}
	return dst
}

// parseSums reads what append wrote; ok is false if it is not of the state of last.
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

// loadSums reads the sums, or begins to count the changes of a database that has none: Verify
// counts the rest.
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

// base is the hash of all records of a database that had no sums, without what changed since
// they are counted.
type base struct {
	gen  uint64
	data setHash
}

// adopt completes the sums with what Verify found. A restore under way may have begun
// before its records were counted.
func (w *writer) adopt(b *base) {
	if b == nil || w.sums.known || b.gen != w.sums.gen || w.meta.replaced.stage != 0 {
		return
	}
	w.sums.data.add(b.data)
	w.sums.known = true
}

// replace takes a record's place in the sum: what went out, what came in.
func (s *sums) replace(out, in setHash) {
	s.data.sub(out)
	s.data.add(in)
}

// swap follows a restore that took the place of all data; kept is what it left.
func (s *sums) swap(kept setHash) {
	if s.known {
		s.data = s.stage
		s.data.add(kept)
	} else {
		s.gen, s.data = s.gen+1, setHash{}
	}
	s.stage = setHash{}
}

// Digest stands for everything a machine holds and has decided: the rolling hash of entries
// and results, the set hash of the records, and the counters.
type Digest [2]uint64

// Mark is the digest of a machine right after it applied the entry at Index. Replicas whose
// marks of one index differ have come to different states.
type Mark struct {
	Index  uint64
	Digest Digest
}

// keepMarks is how many of the newest marks a machine remembers.
const keepMarks = 16

// mark notes the state at an entry that moved cluster time over a multiple of the period.
// Which entries do that depends on the log alone, so all replicas mark the same ones.
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
	for i, seed := range setSeeds {
		var x xxhash.Digest
		x.ResetWithSeed(seed)
		_, _ = x.Write(b)
		d[i] = x.Sum64()
	}
	w.key = b
	return d
}

// remember makes the marks of this Apply known.
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

// Marks returns the newest marks since the machine was opened, oldest first. The slice must
// not be changed.
func (m *Machine) Marks() []Mark {
	if p := m.marks.Load(); p != nil {
		return *p
	}
	return nil
}

// Summed reports whether the sum of all records is known; until Verify has read a database
// that has none there are no marks.
func (m *Machine) Summed() bool { return m.state.Load().summed }

// MarkDue reports whether an entry with the cluster time now would be marked, and the
// newest mark, if there is one, does not tell of the state as it is.
func (m *Machine) MarkDue(now uint64) bool {
	period, s := m.period, m.state.Load()
	if period == 0 || now/period == s.clock/period {
		return false
	}
	marks := m.Marks()
	return s.hash != 0 && (len(marks) == 0 || marks[len(marks)-1].Index < s.applied)
}

// share is a record's part of a sum.
func (w *writer) share(key, value []byte) setHash {
	if w.sums.off {
		return setHash{}
	}
	return member(key, value)
}
