package due

import (
	"math"
	"slices"
	"strings"

	"github.com/quorate/quorate/raftfsm/kv"
)

// item is one index record.
type item struct {
	key  string
	at   uint64 // when it is due, in Unix milliseconds of cluster time
	name string
	// expiry is 0 until a search for expired work has read the work. From then on, it is the cluster time at which a
	// search reads the work again: the end of its ttl, or the constant never.
	expiry uint64
	// written is true if the record is one of those that were written since the last update. Otherwise the Keeper has
	// found it while it read the index.
	written bool
}

const never = math.MaxUint64

// queue holds the first index records of one home in memory, in the order of their keys. It may still contain records
// that were already removed from the store.
type queue struct {
	home Home
	buf  []item
	upto string // every record with a key up to this one was read; used only if more is true
	more bool   // there may be records after upto that were not read

	searched uint64 // when expired work was last looked for; see expireWaiting
}

// add adds an index record that was written to the store. It replaces a record with the same key, because the ttl of
// the work may have changed. It ignores a record after q.upto, which fill reads later.
func (q *queue) add(i item) {
	if q.more && i.key > q.upto {
		return
	}
	at, found := slices.BinarySearchFunc(q.buf, i.key, func(have item, key string) int {
		return strings.Compare(have.key, key)
	})
	if found {
		q.buf[at] = i
		return
	}
	q.buf = slices.Insert(q.buf, at, i)
	if len(q.buf) > maxBuffer {
		clear(q.buf[page:])
		q.buf = q.buf[:page]
		q.upto, q.more = q.buf[page-1].key, true
	}
}

// fill reads the next page of records from the store if the queue is empty.
func (q *queue) fill(m *kv.Machine) error {
	if len(q.buf) > 0 || !q.more {
		return nil
	}
	found, more, err := m.List(kv.DueStore, q.home.table(tableIndex), q.upto, page, 0)
	if err != nil {
		return err
	}
	for i := range found {
		_, _, rest, _ := split(found[i].Key)
		if at, name, ok := splitIndex(rest); ok {
			q.buf = append(q.buf, item{key: found[i].Key, at: at, name: name})
		}
		q.upto = found[i].Key
	}
	q.more = more
	return nil
}

// pop removes and returns the first record.
func (q *queue) pop() item {
	i := q.buf[0]
	q.buf[0] = item{}
	q.buf = q.buf[1:]
	return i
}
