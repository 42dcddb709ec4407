package kv

import "encoding/binary"

// The encoding of a data record:
//
//	head(1) revision(8) [expiry(8)] [content type (uvarint length, text)] value
//
// The upper four bits of head are the format. The lower four bits are flags.
const (
	recordFormat      = 0x10
	recordFormatMask  = 0xf0
	recordExpires     = 0x01
	recordContentType = 0x02
	recordFlags       = recordExpires | recordContentType
)

var errRecord error = formError("data record of an unknown form")

// formError describes stored bytes in a form that this package does not write.
type formError string

func (e formError) Error() string { return string(e) }

type record struct {
	revision    uint64
	expireAt    uint64 // cluster time, 0 = never
	contentType []byte
	value       []byte
}

func recordSize(expireAt uint64, contentType string, value []byte) int {
	n := 1 + 8 + len(value)
	if expireAt != 0 {
		n += 8
	}
	if contentType != "" {
		n += uvarintSize(uint64(len(contentType))) + len(contentType)
	}
	return n
}

func appendRecord(dst []byte, revision, expireAt uint64, contentType string, value []byte) []byte {
	head := byte(recordFormat)
	if expireAt != 0 {
		head |= recordExpires
	}
	if contentType != "" {
		head |= recordContentType
	}
	dst = binary.BigEndian.AppendUint64(append(dst, head), revision)
	if expireAt != 0 {
		dst = binary.BigEndian.AppendUint64(dst, expireAt)
	}
	if contentType != "" {
		dst = binary.AppendUvarint(dst, uint64(len(contentType)))
		dst = append(dst, contentType...)
	}
	return append(dst, value...)
}

// parseRecord reads what appendRecord wrote. The slices of the result alias b.
func parseRecord(b []byte) (record, error) {
	if len(b) < 9 || b[0]&recordFormatMask != recordFormat || b[0]&^recordFormatMask&^recordFlags != 0 {
		return record{}, errRecord
	}
	flags, r := b[0], record{revision: binary.BigEndian.Uint64(b[1:])}
	b = b[9:]
	if flags&recordExpires != 0 {
		if len(b) < 8 {
			return record{}, errRecord
		}
		r.expireAt, b = binary.BigEndian.Uint64(b), b[8:]
	}
	if flags&recordContentType != 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) { //nolint:gosec // size is at most len
			return record{}, errRecord
		}
		r.contentType, b = b[size:size+int(n)], b[size+int(n):] //nolint:gosec // n is at most len
	}
	r.value = b
	return r, nil
}
