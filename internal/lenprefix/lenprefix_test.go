package lenprefix_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/quorate/quorate/internal/lenprefix"
)

// sample returns a byte, a number, a text, no bytes, a count of two, and two more bytes.
func sample() []byte {
	b := binary.AppendUvarint([]byte{7}, 1<<40)
	b = append(binary.AppendUvarint(b, 4), "text"...)
	return append(binary.AppendUvarint(b, 0), 2, 8, 9)
}

type read struct {
	b     byte
	n     uint64
	text  string
	none  []byte
	count int
	all   []byte
}

func readSample(r *lenprefix.Reader) read {
	return read{r.Byte(), r.Uvarint(), r.Text(), r.Bytes(), r.Count(), r.All()}
}

func TestReader_ReadsFieldsInOrder(t *testing.T) {
	r := &lenprefix.Reader{Rest: sample()}
	got := readSample(r)
	if r.Bad || got.b != 7 || got.n != 1<<40 || got.text != "text" || len(got.none) != 0 || got.count != 2 ||
		!bytes.Equal(got.all, []byte{8, 9}) || len(r.Rest) != 0 {
		t.Errorf("%+v, bad %t", got, r.Bad)
	}
}

func TestReader_TruncatedInputIsBad(t *testing.T) {
	whole := sample()
	for n := range len(whole) - 2 { // All reads the last two bytes, and accepts fewer
		r := &lenprefix.Reader{Rest: whole[:n]}
		if got := readSample(r); !r.Bad || len(got.all) != 0 || got.count != 0 {
			t.Errorf("%d bytes: %+v, bad %t", n, got, r.Bad)
		}
	}
}

func TestReader_LengthBeyondEndIsBad(t *testing.T) {
	for _, b := range [][]byte{{3, 1, 2}, binary.AppendUvarint(nil, 1<<63), bytes.Repeat([]byte{0xff}, 11)} {
		for name, field := range map[string]func(*lenprefix.Reader){
			"bytes": func(r *lenprefix.Reader) {
				if got := r.Bytes(); got != nil {
					t.Errorf("% x: %x", b, got)
				}
			},
			"string": func(r *lenprefix.Reader) { _ = r.Text() },
			"count":  func(r *lenprefix.Reader) { r.Count() },
		} {
			r := &lenprefix.Reader{Rest: b}
			if field(r); !r.Bad || len(r.Rest) != 0 {
				t.Errorf("%s of % x: bad %t, % x is left", name, b, r.Bad, r.Rest)
			}
		}
	}
}

func TestReader_BytesHaveNoSpareCapacity(t *testing.T) {
	r := &lenprefix.Reader{Rest: []byte{1, 'a', 'b'}}
	_ = append(r.Bytes(), 'x')
	if string(r.All()) != "b" {
		t.Error("the next field was overwritten")
	}
}
