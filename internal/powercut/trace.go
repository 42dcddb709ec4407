package powercut

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
)

// The operations of a trace. The comment at each operation explains the fields of its Record. First and Second stand
// for the fields first and second. The brackets contain the meanings of the fields a and b.
const (
	opOpen       byte = iota + 1 // First is the path [number of the open file, flags]
	opWrite                      // First is the data [open file, offset]
	opTruncate                   // [open file, size]
	opExtend                     // grows a file to at least a size [open file, size]
	opSyncBegins                 // [open file, number of the sync]
	opSynced                     // [open file, number of the sync]
	opRename                     // from First to Second
	opLink                       // the file First gets the name Second too
	opUnlink                     // First
	opMkdir                      // First
	opNote                       // First is the text
)

const truncates = 1 // flag of opOpen

// Record is one operation of a trace. Paths are relative to the recorded directory.
type Record struct {
	op            byte
	a, b          uint64
	first, second []byte
}

// Note returns the text of a note, and whether the record is one.
func (r *Record) Note() (string, bool) { return string(r.first), r.op == opNote }

func appendRecord(b []byte, op byte, x, y uint64, first, second []byte) []byte {
	b = binary.AppendUvarint(binary.AppendUvarint(append(b, op), x), y)
	b = append(binary.AppendUvarint(b, uint64(len(first))), first...)
	return append(binary.AppendUvarint(b, uint64(len(second))), second...)
}

// ReadTrace reads a trace. It ignores an incomplete record at the end, because the process may have been killed while
// it wrote the record.
func ReadTrace(path string) (out []Record, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for in := bufio.NewReaderSize(f, 1<<20); ; {
		r, err := readRecord(in)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
}

func readRecord(in *bufio.Reader) (r Record, err error) {
	if r.op, err = in.ReadByte(); err != nil {
		return r, err
	}
	if r.a, err = binary.ReadUvarint(in); err != nil {
		return r, err
	}
	if r.b, err = binary.ReadUvarint(in); err != nil {
		return r, err
	}
	if r.first, err = readBytes(in); err != nil {
		return r, err
	}
	r.second, err = readBytes(in)
	return r, err
}

func readBytes(in *bufio.Reader) ([]byte, error) {
	n, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(in, b)
	return b, err
}
