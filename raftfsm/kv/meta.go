package kv

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/quorate/quorate/internal/fault"
)

// formatVersion is the version of the tables (doc.go) that this build reads and writes.
const formatVersion = 1

// metaMagic tells a database of this package from any other Pebble database.
const metaMagic = "quorate.kv"

const metaSize = len(metaMagic) + 2 + 8*8

// meta is the machine's bookkeeping, written whole at the end of every Apply.
type meta struct {
	applied     uint64 // index of the last entry applied
	term        uint64 // its term
	revision    uint64 // last revision or origin number given
	clock       uint64 // cluster time, Unix milliseconds
	keys        uint64 // number of data records
	hash        uint64 // rolling hash of everything applied
	clientFirst uint64 // client queue: number of the oldest item
	clientNext  uint64 // client queue: number of the next item
}

func (m *meta) fields() [8]*uint64 {
	return [...]*uint64{
		&m.applied, &m.term, &m.revision, &m.clock, &m.keys, &m.hash, &m.clientFirst, &m.clientNext,
	}
}

func (m *meta) append(dst []byte) []byte {
	dst = append(dst, metaMagic...)
	dst = binary.BigEndian.AppendUint16(dst, formatVersion)
	for _, f := range m.fields() {
		dst = binary.BigEndian.AppendUint64(dst, *f)
	}
	return dst
}

// parseMeta reads the meta record: fault.Invalid if it is that of another program or of a
// newer version, fault.Corrupt if it is damaged.
func parseMeta(b []byte) (meta, error) {
	rest, ok := bytes.CutPrefix(b, []byte(metaMagic))
	if !ok || len(rest) < 2 {
		return meta{}, errForeign()
	}
	if v := binary.BigEndian.Uint16(rest); v != formatVersion {
		return meta{}, &fault.Error{
			Code: fault.Invalid, Op: "kv.Open",
			Msg:  fmt.Sprintf("the database has format version %d, this build understands %d", v, formatVersion),
			Hint: "run a version that understands it; nothing was changed",
		}
	}
	if len(b) != metaSize {
		return meta{}, fault.New(fault.Corrupt, "kv.Open", "the meta record is damaged")
	}
	var m meta
	for i, f := range m.fields() {
		*f = binary.BigEndian.Uint64(rest[2+8*i:])
	}
	return m, nil
}

func errForeign() error {
	return &fault.Error{
		Code: fault.Invalid, Op: "kv.Open",
		Msg:  "the directory holds a database of another program, or one whose creation did not finish",
		Hint: "check the data directory; if it never held data, remove it",
	}
}
