package kv

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Verified is the result of Verify.
type Verified struct {
	Applied uint64 // index of the state that was read
	Keys    uint64 // records read
	Wrong   string // what differs from the applied state; empty = nothing
}

// verifyStep is the minimum number of bytes that Verify reads before it calls pace again.
const verifyStep = 1 << 20

// Verify compares the stored records, and the changes in histories, with the hashes that were computed when the entries
// were applied. It reads all data in one consistent view. If data is too damaged to be read, the machine breaks. Until
// Verify returns, Pebble cannot free the disk space of overwritten records.
//
// Verify calls pace after about each MiB, with the number of bytes read since the previous call. If pace returns an
// error, Verify stops and returns that error.
func (m *Machine) Verify(pace func(bytes int) error) (Verified, error) {
	if err := m.use("kv.Verify"); err != nil {
		return Verified{}, err
	}
	defer m.gate.leave()
	v := m.view()
	out, err := m.verify(v, pace)
	if err = keep(err, v.close()); err != nil {
		if p, ok := err.(pacing); ok { //nolint:errorlint // it is never wrapped
			return out, p.error
		}
		return out, m.unreadable("kv.Verify", "cannot read the database", err)
	}
	return out, nil
}

// pacing is an error returned by pace, not by the database.
type pacing struct{ error }

func (m *Machine) verify(v *view, pace func(bytes int) error) (out Verified, err error) {
	last, err := v.meta()
	if err != nil {
		return out, err
	}
	out.Applied = last.applied
	var found setHash
	table := last.tables().data()
	if found, out.Keys, err = v.sum([]byte{table}, []byte{table + 1}, pace); err != nil {
		return out, err
	}
	switch {
	case out.Keys != last.keys:
		out.Wrong = fmt.Sprintf("%d records are stored, %d were applied", out.Keys, last.keys)
	case found != last.sums.data:
		out.Wrong = fmt.Sprintf("the hash of the stored records is %016x%016x, that of what was applied %016x%016x",
			found[0], found[1], last.sums.data[0], last.sums.data[1])
	}
	if out.Wrong == "" {
		out.Wrong, err = v.verifyHistories(pace)
	}
	return out, err
}

// sum returns the set hash and the number of the records whose keys k satisfy begin <= k < end.
func (v *view) sum(begin, end []byte, pace func(bytes int) error) (found setHash, keys uint64, err error) {
	it, err := v.snapshot.NewIter(&pebble.IterOptions{LowerBound: begin, UpperBound: end})
	if err != nil {
		return found, 0, err
	}
	defer func() { err = keep(err, it.Close()) }()
	read := 0
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return found, keys, err
		}
		found.add(member(it.Key()[1:], value))
		keys++
		if read += len(it.Key()) + len(value); read >= verifyStep {
			if err := v.m.pause(pace, read); err != nil {
				return found, keys, err
			}
			read = 0
		}
	}
	return found, keys, it.Error()
}

// pause calls pace with the number of bytes read. It returns an error if pace does, or if the machine is closing.
func (m *Machine) pause(pace func(bytes int) error, read int) error {
	if err := pace(read); err != nil {
		return pacing{err}
	}
	select {
	case <-m.gate.closing:
		return pacing{errClosed("kv.Verify")}
	default:
		return nil
	}
}
