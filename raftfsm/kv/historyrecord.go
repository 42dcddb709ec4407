package kv

import (
	"bytes"
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"

	"github.com/quorate/quorate/internal/lenprefix"
)

// The first bytes of the keys in the tables of histories. There is only one set of these tables, because a restore
// empties them and writes nothing to them.
const (
	tableWatched = 0x09
	tableChange  = 0x0a
	tableSegment = 0x0b
)

// historyFormat is the first byte of every record of the tables of histories.
const historyFormat = 1

// Flags of a change.
const (
	changeLast    = 1 << iota // the last change of its request
	changeRemoval             // a removal of a key
	changeExpired             // a removal of a key that had expired
	changeExpires             // a set with an expiry
	changeFlags   = changeLast | changeRemoval | changeExpired | changeExpires
)

var errHistory error = formError("history record of an unknown form")

const changeKeySize = 1 + 8 + 8

func appendChangeKey(dst []byte, id, revision uint64) []byte {
	return binary.BigEndian.AppendUint64(appendNumberKey(dst, tableChange, id), revision)
}

func appendSegmentKey(dst []byte, id, first uint64) []byte {
	return binary.BigEndian.AppendUint64(appendNumberKey(dst, tableSegment, id), first)
}

func appendWatchedKey(dst []byte, k rowKey) []byte {
	dst = append(append(dst, tableWatched), k.store...)
	return append(append(dst, 0), k.key...)
}

// changeSize returns the size of what appendChange appends.
func changeSize(p *pendingChange) int {
	n := 2 + uvarintSize(uint64(len(p.key))) + len(p.key)
	if p.op == nil {
		return n
	}
	if p.expireAt != 0 {
		n += 8
	}
	return n + uvarintSize(uint64(len(p.op.ContentType))) + len(p.op.ContentType) + len(p.op.Value)
}

// appendChange appends the record of a change to dst:
//
//	format(1) flags(1) key [expiry(8)] [content type, value]
//
// The key and the content type are length-prefixed. The record of a removal ends after the key. The parameter last is
// true for the last change of a request.
func appendChange(dst []byte, p *pendingChange, last bool) []byte {
	flags := byte(0)
	for bit, set := range [...]bool{last, p.op == nil, p.expired, p.expireAt != 0} {
		flags |= flag(set) << bit
	}
	dst = binary.AppendUvarint(append(dst, historyFormat, flags), uint64(len(p.key)))
	dst = append(dst, p.key...)
	if p.op == nil {
		return dst
	}
	if p.expireAt != 0 {
		dst = binary.BigEndian.AppendUint64(dst, p.expireAt)
	}
	dst = binary.AppendUvarint(dst, uint64(len(p.op.ContentType)))
	dst = append(dst, p.op.ContentType...)
	return append(dst, p.op.Value...)
}

// parseChange reads what appendChange wrote. The result does not alias raw.
func parseChange(key, raw []byte) (Change, error) {
	if len(key) != changeKeySize || len(raw) < 2 || raw[0] != historyFormat || raw[1]&^changeFlags != 0 {
		return Change{}, errHistory
	}
	flags, r := raw[1], lenprefix.Reader{Rest: raw[2:]}
	c := Change{
		Revision: binary.BigEndian.Uint64(key[9:]), Key: r.Text(), Last: flags&changeLast != 0,
		Deleted: flags&changeRemoval != 0, Expired: flags&changeExpired != 0,
	}
	if c.Deleted {
		return c, badChange(&r, len(r.Rest) == 0)
	}
	if flags&changeExpires != 0 {
		if len(r.Rest) < 8 {
			return c, errHistory
		}
		c.ExpireAt, r.Rest = binary.BigEndian.Uint64(r.Rest), r.Rest[8:]
	}
	c.ContentType = r.Text()
	c.Value = bytes.Clone(r.Rest)
	return c, badChange(&r, true)
}

func badChange(r *lenprefix.Reader, whole bool) error {
	if r.Bad || !whole {
		return errHistory
	}
	return nil
}

func (s *segment) fields() [7]*uint64 {
	return [...]*uint64{&s.first, &s.last, &s.size, &s.oldest, &s.newest, &s.hash[0], &s.hash[1]}
}

func (s *segment) append(dst []byte) []byte {
	fields := s.fields()
	return appendNumbers(append(dst, historyFormat), fields[:])
}

func parseSegment(raw []byte) (s segment, err error) {
	fields := s.fields()
	return s, parseNumbers(raw, fields[:])
}

func (h *history) fields() []*uint64 {
	open := h.open.fields()
	return append([]*uint64{&h.id, &h.floor, &h.age, &h.bytes, &h.until}, open[:]...)
}

func (h *history) append(dst []byte) []byte {
	return appendNumbers(append(dst, historyFormat), h.fields())
}

// parseHistory reads what history.append wrote. Closed segments have records of their own.
func parseHistory(key, raw []byte) (*history, error) {
	store, prefix, ok := bytes.Cut(key[1:], []byte{0})
	if !ok {
		return nil, errHistory
	}
	h := &history{key: rowKey{string(store), string(prefix)}}
	if err := parseNumbers(raw, h.fields()); err != nil {
		return nil, err
	}
	h.size = h.open.size
	return h, nil
}

func parseNumbers(raw []byte, fields []*uint64) error {
	if len(raw) != 1+8*len(fields) || raw[0] != historyFormat {
		return errHistory
	}
	for i, f := range fields {
		*f = binary.BigEndian.Uint64(raw[1+8*i:])
	}
	return nil
}

// loadHistories reads all histories of a database.
func (w *writer) loadHistories() error {
	all, err := readHistories(w.txn.db)
	if err != nil || len(all) == 0 {
		return err
	}
	w.histories.all = map[rowKey]*history{}
	for _, h := range all {
		w.histories.all[h.key] = h
		w.histories.size += h.size
	}
	w.histories.due = w.histories.nextDue()
	return nil
}

// readHistories returns all histories with their segments, in the order of their keys.
func readHistories(db pebble.Reader) (all []*history, err error) {
	err = eachRecord(db, []byte{tableWatched}, []byte{tableWatched + 1}, func(key, raw []byte) error {
		h, err := parseHistory(key, raw)
		all = append(all, h)
		return err
	})
	for _, h := range all {
		if err != nil {
			return nil, err
		}
		from, end := appendNumberKey(nil, tableSegment, h.id), appendNumberKey(nil, tableSegment, h.id+1)
		err = eachRecord(db, from, end, func(_, raw []byte) error {
			s, err := parseSegment(raw)
			h.closed = append(h.closed, s)
			h.size += s.size
			return err
		})
	}
	return all, err
}

func eachRecord(db pebble.Reader, from, end []byte, f func(key, raw []byte) error) (err error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: end})
	if err != nil {
		return err
	}
	defer func() { err = keep(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		raw, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := f(it.Key(), raw); err != nil {
			return err
		}
	}
	return it.Error()
}

// digest appends the records, sizes and hashes of all histories to b, as input of the machine's Digest.
func (hs *histories) digest(b []byte) []byte {
	for _, k := range hs.keys() {
		h := hs.all[k]
		sum := h.hash()
		b = appendNumbers(append(append(b, h.key.store...), h.key.key...), h.fields())
		b = appendNumbers(b, []*uint64{&h.size, &sum[0], &sum[1]})
	}
	return b
}

// hash returns the set hash of all changes.
func (h *history) hash() setHash {
	sum := h.open.hash
	for i := range h.closed {
		sum.add(h.closed[i].hash)
	}
	return sum
}

// verifyHistories compares the stored changes of all histories with the hashes that were computed when the changes were
// applied. It returns a description of the first difference, or "" if there is none.
func (v *view) verifyHistories(pace func(bytes int) error) (wrong string, err error) {
	all, err := readHistories(v.snapshot)
	if err != nil {
		return "", err
	}
	for _, h := range all {
		from, end := appendNumberKey(nil, tableChange, h.id), appendNumberKey(nil, tableChange, h.id+1)
		found, _, err := v.sum(from, end, pace)
		if err != nil {
			return "", err
		}
		if found != h.hash() {
			return "the stored changes of prefix " + h.key.key + " in store " + h.key.store +
				" are not those that were applied", nil
		}
	}
	return "", nil
}
