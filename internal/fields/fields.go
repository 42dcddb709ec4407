// Package fields reads what is encoded as fields one after the other: single bytes,
// unsigned varints (encoding/binary), and bytes with their length in front. The append
// functions of encoding/binary write it. The package owns nothing: a Reader and what it
// reads belong to its caller.
package fields

import "encoding/binary"

// Reader reads fields from front to back. The first that is missing or cut off sets Bad, and
// from then on every field is zero, so that a caller asks once, at the end. It is not for
// concurrent use.
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

// Count reads the number of things that follow, each of at least one byte: more than there
// are bytes is Bad, so that nobody makes room for what cannot be there.
func (r *Reader) Count() int {
	n := r.Uvarint()
	if n > uint64(len(r.Rest)) {
		r.fail()
		return 0
	}
	return int(n) //nolint:gosec // at most the length of a slice
}

// Bytes reads a length and so many bytes. They alias what is read, and have no room to grow.
func (r *Reader) Bytes() []byte {
	n := r.Count()
	v := r.Rest[:n:n]
	r.Rest = r.Rest[n:]
	if r.Bad {
		return nil
	}
	return v
}

// Text is Bytes as a text of its own.
func (r *Reader) Text() string { return string(r.Bytes()) }

// All reads everything that is left. It aliases what is read.
func (r *Reader) All() []byte {
	v := r.Rest
	r.Rest = nil
	return v
}
