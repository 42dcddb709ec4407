package kv

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
	"github.com/quorate/quorate/internal/fault"
)

// TopicStore is the name of the internal store for topics, their messages and consumer groups (see package topics).
// Backups contain this store. The name is part of the format. It has no slash, so it differs from the name of every
// application's store.
const TopicStore = "topics"

// TopicsChanged reports whether a record of TopicStore was written since the last call.
func (m *Machine) TopicsChanged() bool { return m.topics.happened() }

// CollectTopicChanges starts or stops the recording of written keys of TopicStore. Each call discards the keys recorded
// before it.
func (m *Machine) CollectTopicChanges(on bool) { m.topics.collect(on) }

// TopicChanges returns the keys of TopicStore that were written since the last call. The results have the same meaning
// as those of DueChanges.
func (m *Machine) TopicChanges() (keys []string, all bool) { return m.topics.take() }

// Record is one stored record, as Machine.Records returns it.
type Record struct {
	Key      string
	Value    []byte // the caller's own copy
	Revision uint64
	ExpireAt uint64 // cluster time, Unix milliseconds; 0 = never
}

// Records returns records whose keys have the given prefix, in the byte order of their keys. If after is not empty, the
// first record is the one with the next greater key. Expired records are left out, by the same rule as in Get.
//
// Records returns up to limit records, and stops early when the values have maxBytes bytes or more in total. hasMore is
// true if further records follow. The errors are those of List.
func (m *Machine) Records(store, prefix, after string, limit, maxBytes int, now uint64) (found []Record, hasMore bool,
	err error) {
	if limit < 1 {
		return nil, false, fault.New(fault.Invalid, "kv.Records", "the limit of a read must be at least 1")
	}
	if err := m.useStore("kv.Records", store); err != nil {
		return nil, false, err
	}
	defer m.gate.leave()
	found, hasMore, err = m.records(store, prefix, after, limit, maxBytes, now)
	if err != nil {
		return nil, false, m.unreadable("kv.Records", "cannot read store "+store, err)
	}
	return found, hasMore, nil
}

func (m *Machine) records(store, prefix, after string, limit, maxBytes int, now uint64) (found []Record, more bool,
	err error) {
	v := m.view()
	defer func() { err = keep(err, v.close()) }()
	from, end := listBounds(v.live, store, prefix, after)
	it, err := v.snapshot.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: end})
	if err != nil {
		return nil, false, err
	}
	defer func() { err = keep(err, it.Close()) }()
	strip, size := dataKeySize(store, ""), 0
	for ok := it.First(); ok; ok = it.Next() {
		r, live, err := v.current(it, now)
		if err != nil {
			return nil, false, err
		}
		if !live {
			continue
		}
		if len(found) == limit || size >= maxBytes {
			return found, true, nil
		}
		size += len(r.value)
		found = append(found, Record{Key: string(it.Key()[strip:]), Value: bytes.Clone(r.value), Revision: r.revision,
			ExpireAt: r.expireAt})
	}
	return found, false, it.Error()
}
