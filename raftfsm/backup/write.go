package backup

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"hash/crc64"
	"io"

	"github.com/quorate/quorate/internal/fault"
)

// Writer writes a backup file. For each group, call Begin, then Records and then Remembered as often as needed, and
// then End. Call Close after the last group. After an error the file is unusable.
type Writer struct {
	w     io.Writer
	buf   bytes.Buffer
	whole sums // of the file so far
	group sums // of the current group so far
}

// sums are the running counts and checksum of a part of a file.
type sums struct {
	Totals
	crc uint64
}

func (s *sums) take(frame []byte) {
	s.Bytes += uint64(len(frame))
	s.crc = crc64.Update(s.crc, ecma, frame)
}

// NewWriter writes the header and returns a Writer.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	h.Formats.File = Version
	if err := h.validate(); err != nil {
		return nil, err
	}
	b := &Writer{w: w}
	head := binary.BigEndian.AppendUint16([]byte(magic), Version)
	b.whole.take(head)
	if _, err := w.Write(head); err != nil {
		return nil, err
	}
	return b, b.json(frameHeader, h)
}

// Begin begins the group with the given id. Groups must have the ids 0, 1, 2 and so on, in this order.
func (b *Writer) Begin(group uint32) error {
	b.group = sums{}
	return b.json(frameBegin, begin{ID: group})
}

// Records writes records of the current group as one frame. All records of a group must be sorted by store and then by
// key, in byte order. Records returns fault.TooLarge if the payload of the frame has more than maxFrame bytes.
func (b *Writer) Records(records []Record) error {
	if len(records) == 0 {
		return nil
	}
	b.start(frameRecords)
	out := b.buf.AvailableBuffer()
	store := ""
	for i := range records {
		r := &records[i]
		same := byte(0)
		if r.Store == store {
			same = 1
		}
		out = append(out, same)
		if same == 0 {
			out = appendText(out, r.Store)
			store = r.Store
		}
		out = appendText(out, r.Key)
		out = appendText(out, r.ContentType)
		out = binary.AppendUvarint(out, r.ExpireAt)
		out = appendText(out, r.Value)
		b.buf.Write(out)
		out = b.buf.AvailableBuffer()
	}
	b.group.Keys += uint64(len(records))
	return b.flush()
}

// Remembered writes stored results of requests with a ClientID, oldest first.
func (b *Writer) Remembered(list []Remembered) error {
	if len(list) == 0 {
		return nil
	}
	b.start(frameRemembered)
	for i := range list {
		m := &list[i]
		out := appendText(b.buf.AvailableBuffer(), m.Key)
		out = binary.AppendUvarint(out, m.ExpireAt)
		out = binary.AppendUvarint(out, m.Fingerprint)
		b.buf.Write(appendText(out, m.Result))
	}
	b.group.Remembered += uint64(len(list))
	return b.flush()
}

// End ends the current group and returns its counts.
func (b *Writer) End() (Totals, error) {
	t := b.group.Totals
	b.whole.Keys += t.Keys
	b.whole.Remembered += t.Remembered
	return t, b.json(frameEnd, end{Totals: t, Sum: sumText(b.group.crc)})
}

// Close writes the trailer and returns the counts of the whole file. It does not close the underlying writer.
func (b *Writer) Close() (Totals, error) {
	t := b.whole.Totals
	return t, b.json(frameTrailer, end{Totals: t, Sum: sumText(b.whole.crc)})
}

func (b *Writer) json(kind byte, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	b.start(kind)
	b.buf.Write(text)
	return b.flush()
}

// start begins a frame.
func (b *Writer) start(kind byte) {
	b.buf.Reset()
	b.buf.Write([]byte{kind, 0, 0, 0, 0})
}

// flush adds the length and the checksum to the current frame, and writes the frame.
func (b *Writer) flush() error {
	size := b.buf.Len() - frameHead
	if size > maxFrame {
		return &fault.Error{Code: fault.TooLarge, Op: "backup.Write", Msg: "a record is larger than a backup can hold"}
	}
	frame := b.buf.Bytes()
	binary.BigEndian.PutUint32(frame[1:], uint32(size))
	b.buf.Write(binary.BigEndian.AppendUint32(nil, crc32.Checksum(frame, castagnoli)))
	frame = b.buf.Bytes()
	b.whole.take(frame)
	b.group.take(frame)
	_, err := b.w.Write(frame)
	return err
}

func appendText[T string | []byte](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}
