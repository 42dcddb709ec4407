package backup

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
)

// Reader reads and verifies a backup file from front to back. The file is fully verified once Next has returned io.EOF.
type Reader struct {
	Header Header

	r     *bufio.Reader
	buf   bytes.Buffer
	whole sums
	group sums
	state state
	next  uint32 // id of the group that begins next
	last  place  // place of the last record read, to check the order of the records
	done  bool
}

// state is the position of a Reader within the structure of a file.
type state uint8

const (
	between state = iota // outside of a group
	records
	remembered
)

// place is the position of a record in a group: its store and its key.
type place struct{ store, key string }

func (a place) before(b place) bool {
	return a.store < b.store || a.store == b.store && a.key < b.key
}

// Part is the next piece of a file. Group is always set, together with exactly one of Begins, Records, Remembered and
// Ends.
type Part struct {
	Group      uint32
	Begins     bool         // the group begins
	Records    []Record     // some records of the group
	Remembered []Remembered // some stored results of the group
	Ends       bool         // the group ends; Totals is set too
	Totals     Totals
}

// NewReader reads the header of a backup file and returns a Reader for the rest. It returns fault.Invalid for a file
// of another program or of a newer version, and fault.Corrupt for a damaged or truncated file.
func NewReader(r io.Reader) (*Reader, error) {
	b := &Reader{r: bufio.NewReaderSize(r, 256<<10)}
	head := make([]byte, headSize)
	n, err := io.ReadFull(b.r, head)
	switch {
	case n < len(magic) || string(head[:len(magic)]) != magic:
		if err != nil && !isEnd(err) {
			return nil, err
		}
		return nil, &fault.Error{Code: fault.Invalid, Op: "backup.Read", Msg: "this is not a backup of this program",
			Hint: "name a file that quorate backup save has written"}
	case isEnd(err):
		return nil, torn("header")
	case err != nil:
		return nil, err
	}
	if v := binary.BigEndian.Uint16(head[len(magic):]); v != Version {
		return nil, &fault.Error{Code: fault.Invalid, Op: "backup.Read",
			Msg:  fmt.Sprintf("the backup has format %d, this version understands up to %d", v, Version),
			Hint: "use the version of quorate that wrote it, or a newer one"}
	}
	b.whole.take(head)
	kind, payload, err := b.frame("header")
	if err != nil {
		return nil, err
	}
	if kind != frameHeader {
		return nil, damaged("header", "it has none")
	}
	if err := json.Unmarshal(payload, &b.Header); err != nil {
		return nil, damaged("header", err.Error())
	}
	b.account()
	return b, b.Header.validate()
}

func isEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// frame reads one frame. The payload is valid until the next call.
func (b *Reader) frame(part string) (kind byte, payload []byte, err error) {
	b.buf.Reset()
	if err := b.read(frameHead, part); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(b.buf.Bytes()[1:])
	if size > maxFrame {
		return 0, nil, damaged(part, fmt.Sprintf("a frame of %d bytes", size))
	}
	if err := b.read(int(size)+4, part); err != nil {
		return 0, nil, err
	}
	frame := b.buf.Bytes()
	body := frame[:len(frame)-4]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(frame[len(body):]) {
		return 0, nil, damaged(part, "its checksum does not match")
	}
	return frame[0], body[frameHead:], nil
}

// read appends n bytes to the buffer. Memory grows with the bytes read, not with n.
func (b *Reader) read(n int, part string) error {
	_, err := io.CopyN(&b.buf, b.r, int64(n))
	if isEnd(err) {
		return torn(part)
	}
	return err
}

// account adds the frame that was read last to the sums of the group and of the file.
func (b *Reader) account() {
	b.whole.take(b.buf.Bytes())
	b.group.take(b.buf.Bytes())
}

// Next returns the next part. It returns io.EOF after the trailer of a complete file.
func (b *Reader) Next() (Part, error) {
	if b.done {
		return Part{}, io.EOF
	}
	kind, payload, err := b.frame(b.part())
	if err != nil {
		return Part{}, err
	}
	p, err := b.take(kind, payload)
	if err != nil {
		return Part{}, err
	}
	if kind == frameTrailer {
		b.done = true
		return Part{}, b.nothingFollows()
	}
	if kind != frameEnd {
		b.account()
	} else {
		b.whole.take(b.buf.Bytes())
	}
	return p, nil
}

// part names the position of the reader, for error messages.
func (b *Reader) part() string {
	switch {
	case b.state != between:
		return fmt.Sprintf("group %d", b.next-1)
	case b.next < b.Header.Partitions:
		return fmt.Sprintf("group %d", b.next)
	default:
		return "trailer"
	}
}

func (b *Reader) nothingFollows() error {
	switch _, err := b.r.ReadByte(); {
	case errors.Is(err, io.EOF):
		return io.EOF
	case err != nil:
		return err
	}
	return damaged("end", "bytes follow it")
}

// take decodes a frame with the given kind and payload. It returns fault.Corrupt if the frame is malformed, or if a
// frame of this kind is not allowed at this position.
func (b *Reader) take(kind byte, payload []byte) (Part, error) {
	p := Part{Group: b.next - 1}
	bad := func(why string) (Part, error) { return Part{}, damaged(b.part(), why) }
	switch {
	case kind == frameBegin && b.state == between && b.next < b.Header.Partitions:
		var v begin
		if err := json.Unmarshal(payload, &v); err != nil || v.ID != b.next {
			return bad("another group was expected")
		}
		p.Group, p.Begins = b.next, true
		b.group, b.state, b.last = sums{}, records, place{}
		b.next++
	case kind == frameRecords && b.state == records:
		var err error
		if p.Records, err = b.records(payload); err != nil {
			return bad(err.Error())
		}
		b.group.Keys += uint64(len(p.Records))
	case kind == frameRemembered && b.state != between:
		var err error
		if p.Remembered, err = decodeRemembered(payload); err != nil {
			return bad(err.Error())
		}
		b.group.Remembered += uint64(len(p.Remembered))
		b.state = remembered
	case kind == frameEnd && b.state != between:
		if err := checkEnd(payload, &b.group); err != nil {
			return bad(err.Error())
		}
		p.Ends, p.Totals = true, b.group.Totals
		b.whole.Keys += p.Totals.Keys
		b.whole.Remembered += p.Totals.Remembered
		b.state = between
	case kind == frameTrailer && b.state == between && b.next == b.Header.Partitions:
		if err := checkEnd(payload, &b.whole); err != nil {
			return bad(err.Error())
		}
	default:
		return bad(fmt.Sprintf("a frame of type %d does not belong here", kind))
	}
	return p, nil
}

func checkEnd(payload []byte, have *sums) error {
	var v end
	if err := json.Unmarshal(payload, &v); err != nil {
		return err
	}
	if v.Totals != have.Totals || v.Sum != sumText(have.crc) {
		return fmt.Errorf("it ends with %d keys and checksum %s, %d and %s were expected", have.Keys,
			sumText(have.crc), v.Keys, v.Sum)
	}
	return nil
}

var errForm = errors.New("a record breaks the format")

func (b *Reader) records(payload []byte) ([]Record, error) {
	c := lenprefix.Reader{Rest: bytes.Clone(payload)}
	var out []Record
	store := ""
	for len(c.Rest) > 0 && !c.Bad {
		switch c.Byte() {
		case 0:
			store = c.Text()
		case 1:
		default:
			return nil, errForm
		}
		r := Record{Store: store, Key: c.Text(), ContentType: c.Text(), ExpireAt: c.Uvarint(), Value: c.Bytes()}
		at := place{r.Store, r.Key}
		if c.Bad || r.Store == "" || r.Key == "" || bytes.IndexByte([]byte(r.Store), 0) >= 0 {
			return nil, errForm
		}
		if !b.last.before(at) {
			return nil, errors.New("its keys are out of order")
		}
		b.last = at
		out = append(out, r)
	}
	return out, nil
}

func decodeRemembered(payload []byte) ([]Remembered, error) {
	c := lenprefix.Reader{Rest: bytes.Clone(payload)}
	var out []Remembered
	for len(c.Rest) > 0 {
		m := Remembered{Key: c.Text(), ExpireAt: c.Uvarint(), Fingerprint: c.Uvarint(), Result: c.Bytes()}
		if c.Bad || m.Key == "" || m.ExpireAt == 0 || len(m.Result) == 0 {
			return nil, errForm
		}
		out = append(out, m)
	}
	return out, nil
}
