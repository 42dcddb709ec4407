// Package lenprefix reads a sequence of fields. A field is a single byte, an unsigned varint of encoding/binary, or
// bytes with a length prefix. To write such fields, use the append functions of encoding/binary. The package owns only
// this encoding. A Reader does not copy its input, so the caller must not change it.
package lenprefix

import "encoding/binary"

// Reader reads fields from front to back. If a field is missing or truncated, the Reader sets Bad,
// and that field and all further ones are zero. So a caller checks Bad once, after the last field.
// A Reader is not safe for concurrent use.
type Reader struct {
	Rest []byte // not yet read
	Bad  bool
}

func (r *Reader) fail() {
	r.Bad, r.Rest = true, nil
}

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if len(r.Rest) == 0 {
		r.fail()
		return 0
	}
	v := r.Rest[0]
	r.Rest = r.Rest[1:]
	return v
}

// Uvarint reads a number.
func (r *Reader) Uvarint() uint64 {
	v, n := binary.Uvarint(r.Rest)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.Rest = r.Rest[n:]
	return v
}

// Count reads the number of the items that follow. Each item has at least one byte, so a number above the number of
// remaining bytes sets Bad. A caller can therefore safely allocate memory for that many items.
func (r *Reader) Count() int {
	n := r.Uvarint()
	if n > uint64(len(r.Rest)) {
		r.fail()
		return 0
	}
	return int(n) //nolint:gosec // at most the length of a slice
}

// Bytes reads a length and that many bytes. The result shares the memory of the input; its capacity
// is its length.
func (r *Reader) Bytes() []byte {
	n := r.Count()
	v := r.Rest[:n:n]
	r.Rest = r.Rest[n:]
	if r.Bad {
		return nil
	}
	return v
}

// Text returns Bytes as a string.
func (r *Reader) Text() string { return string(r.Bytes()) }

// All reads everything that is left. It aliases what is read.
func (r *Reader) All() []byte {
	v := r.Rest
	r.Rest = nil
	return v
}
