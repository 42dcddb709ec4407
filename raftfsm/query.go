package raftfsm

import (
	"encoding/binary"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/peercalls"
)

// queryKind is the kind of a query. The numbers are part of the protocol.
type queryKind uint8

const (
	queryGet  queryKind = 1 + iota // one key
	queryMany                      // several keys in one consistent view
	queryList                      // a page of keys
)

// query describes a read of one group and holds the result. The read is performed on the local replica or by another
// server that has a replica.
type query struct {
	kind          queryKind
	store         string
	keys          []string
	prefix, after string // queryList
	limit         int    // queryList: 1 to maxPage
	// maxBytes limits the size of the value, or of all values together; 0 = no limit. It is not sent to other
	// servers, which use maxAnswer.
	maxBytes int64
	strong   bool // linearizable: an item that the result omits as expired is expired for every later leader

	values []kv.Value  // result: one for each key, in order
	listed []kv.Listed // result of queryList
	more   bool        // there are more keys after those listed
	asked  uint64      // the leader's time when a strong listing began

	key   [1]string // storage for keys and values of a queryGet
	value [1]kv.Value
}

// queryOne returns a query for one key.
func queryOne(store, key string) *query {
	q := &query{kind: queryGet, store: store, key: [1]string{key}}
	q.keys = q.key[:]
	return q
}

// look executes the query on m and stores the result in q. The parameter now is the time of the read. look omits items
// that have expired by that time. pending is true if an omitted item has not expired yet at the cluster time of m, so
// that another reader may still see it.
//
// A strong listing omits only items that have expired at the cluster time of m. If any item of the group may expire
// after that time and no later than now, pending is true and look stores no result. The caller must then advance
// cluster time and repeat the call. A repeated call uses the value of now from the first call. For any other listing,
// pending is false.
func (q *query) look(m *kv.Machine, now uint64) (pending bool, err error) {
	switch q.kind {
	case queryGet:
		v, err := m.GetWithin(q.store, q.keys[0], now, q.maxBytes)
		q.value[0] = v
		q.values = q.value[:]
		return v.Pending, err
	case queryMany:
		q.values, err = m.GetManyWithin(q.store, q.keys, now, q.maxBytes)
		for i := range q.values {
			pending = pending || q.values[i].Pending
		}
		return pending, err
	default:
		return q.list(m, now)
	}
}

func (q *query) list(m *kv.Machine, now uint64) (pending bool, err error) {
	if q.strong {
		// List at cluster time. If an item has expired after that time, the caller must first advance cluster time.
		if q.asked == 0 {
			q.asked = now
		}
		if due, any := m.NextDue(); any && due <= q.asked && m.Clock() < q.asked {
			return true, nil
		}
		now = 0
	}
	q.listed, q.more, err = m.List(q.store, q.prefix, q.after, q.limit, now)
	return false, err
}

// append encodes the request of q.
func (q *query) append(b []byte) []byte {
	b = append(b, byte(q.kind))
	b = lenprefix.Append(b, q.store)
	if q.kind == queryList {
		b = lenprefix.Append(lenprefix.Append(b, q.prefix), q.after)
		return binary.AppendUvarint(b, uint64(q.limit)) //nolint:gosec // positive
	}
	b = binary.AppendUvarint(b, uint64(len(q.keys)))
	for _, k := range q.keys {
		b = lenprefix.Append(b, k)
	}
	return b
}

// readQuery decodes what append encodes. The result is validated.
func readQuery(f *peercalls.Frame) (*query, error) {
	q := &query{kind: queryKind(f.Byte()), store: f.Text()}
	switch q.kind {
	case queryGet, queryMany:
		n := f.Uvarint()
		if n > uint64(len(f.Rest)) || n == 0 || q.kind == queryGet && n != 1 {
			f.Bad = true
			break
		}
		for range n {
			q.keys = append(q.keys, f.Text())
		}
	case queryList:
		q.prefix, q.after = f.Text(), f.Text()
		n := f.Uvarint()
		f.Bad = f.Bad || n == 0 || n > maxPage
		q.limit = int(min(n, maxPage)) //nolint:gosec // bounded
	default:
		f.Bad = true
	}
	if f.Bad || len(f.Rest) > 0 {
		return nil, peercalls.ErrFrame(peercalls.MethodRead)
	}
	return q, nil
}

// Bits in the encoding of a result.
const (
	valueFound = 1 << iota
	valueMore  // of a listing: there are more keys
)

// appendFound encodes the result of q.
func (q *query) appendFound(b []byte) []byte {
	if q.kind == queryList {
		more := uint64(0)
		if q.more {
			more = valueMore
		}
		b = binary.AppendUvarint(binary.AppendUvarint(b, more), uint64(len(q.listed)))
		for i := range q.listed {
			l := &q.listed[i]
			b = lenprefix.Append(b, l.Key)
			b = binary.AppendUvarint(binary.AppendUvarint(b, l.Revision), l.ExpireAt)
			b = binary.AppendUvarint(b, uint64(l.Size)) //nolint:gosec // not negative
		}
		return b
	}
	for i := range q.values {
		v := &q.values[i]
		if !v.Found {
			b = append(b, 0)
			continue
		}
		b = append(b, valueFound)
		b = lenprefix.Append(b, v.Value)
		b = lenprefix.Append(b, v.ContentType)
		b = binary.AppendUvarint(binary.AppendUvarint(b, v.Revision), v.ExpireAt)
	}
	return b
}

// readFound decodes what appendFound encodes, into q. On an error q is unchanged.
func (q *query) readFound(f *peercalls.Frame) error {
	var listed []kv.Listed
	var values []kv.Value
	more := false
	if q.kind == queryList {
		more = f.Uvarint()&valueMore != 0
		n := f.Uvarint()
		f.Bad = f.Bad || n > uint64(len(f.Rest)) || n > maxPage
		for i := uint64(0); i < n && !f.Bad; i++ {
			l := kv.Listed{Key: f.Text(), Revision: f.Uvarint(), ExpireAt: f.Uvarint()}
			l.Size = int(f.Uvarint()) //nolint:gosec // informative
			listed = append(listed, l)
		}
	} else {
		for i := 0; i < len(q.keys) && !f.Bad; i++ {
			values = append(values, readValue(f))
		}
	}
	if f.Bad || len(f.Rest) > 0 {
		return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.read", Msg: "the answer of the server cannot be read",
			Hint: "run the same version on all nodes"}
	}
	q.listed, q.values, q.more = listed, values, more
	return nil
}

// readValue reads one value, or its absence.
func readValue(f *peercalls.Frame) kv.Value {
	if f.Byte()&valueFound == 0 {
		return kv.Value{}
	}
	return kv.Value{Found: true, Value: append([]byte{}, f.Bytes()...), ContentType: f.Text(), Revision: f.Uvarint(),
		ExpireAt: f.Uvarint()}
}
