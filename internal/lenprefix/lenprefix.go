// Package lenprefix reads and writes sequences of fields. A field is one of these:
//
//   - a single byte
//   - a number, as an unsigned varint of encoding/binary
//   - a byte slice, as its length and its bytes. The length is also an unsigned varint.
//
// Append writes a byte slice with its length. To write other fields, callers use the built-in append and
// binary.AppendUvarint. A Reader does not copy its input. The caller must not change the input while it uses the
// Reader or slices that the Reader has returned.
//
// The package owns this format. It has no goroutines.
package lenprefix

import "encoding/binary"

// Reader reads fields from front to back. If a field is missing or truncated, Bad becomes true. This field and all
// further ones are then zero, so it is enough to check Bad after the last field. A Reader is not safe for concurrent
// use.
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

// Count reads the number of the items that follow, each of which has at least one byte. If fewer bytes than items are
// left, Count sets Bad and returns 0. The caller can therefore allocate memory for all items.
func (r *Reader) Count() int {
	n := r.Uvarint()
	if n > uint64(len(r.Rest)) {
		r.fail()
		return 0
	}
	return int(n) //nolint:gosec // at most the length of a slice
}

// Bytes reads a length, and a byte slice of that length. The slice shares memory with the input, but an append to the
// slice does not change the input.
func (r *Reader) Bytes() []byte {
	n := r.Count()
	v := r.Rest[:n:n]
	r.Rest = r.Rest[n:]
	if r.Bad {
		return nil
	}
	return v
}

// Text is like Bytes, but returns a string.
func (r *Reader) Text() string { return string(r.Bytes()) }

// All reads everything that is left. The result shares the memory of the input.
func (r *Reader) All() []byte {
	v := r.Rest
	r.Rest = nil
	return v
}

// Append appends the length of s and then s itself to b. Reader.Text and Reader.Bytes read this form.
func Append[T ~string | ~[]byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
