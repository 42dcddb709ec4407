package kv

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/quorate/quorate/internal/fault"
)

// formatVersion is the format version of the tables (see doc.go). This build reads and writes only this version.
const formatVersion = 1

// metaMagic distinguishes a database of this package from any other Pebble database.
const metaMagic = "quorate.kv"

const metaSize = len(metaMagic) + 2 + metaNumbers*8

// metaNumbers is how many numbers a meta record has.
const metaNumbers = 8 + 9 + 1 + 4

// meta is the machine's bookkeeping, written as a whole at the end of every Apply.
type meta struct {
	applied     uint64 // index of the last entry applied
	term        uint64 // its term
	revision    uint64 // last revision or origin number used
	clock       uint64 // cluster time, Unix milliseconds
	keys        uint64 // number of data records
	hash        uint64 // rolling hash of the applied entries and their results
	clientFirst uint64 // client queue: number of the oldest item
	clientNext  uint64 // client queue: number of the next item

	replaced replaced

	level uint64 // highest version of log entries that the group may hold; it never decreases
	sums  sums
}

// tables returns the live set of tables.
func (m *meta) tables() tables { return tables(m.replaced.live) }

func (m *meta) fields() [metaNumbers]*uint64 {
	r, s := &m.replaced, &m.sums
	return [...]*uint64{
		&m.applied, &m.term, &m.revision, &m.clock, &m.keys, &m.hash, &m.clientFirst, &m.clientNext,
		&r.live, &r.at, &r.id, &r.stage, &r.seen, &r.parts, &r.base, &r.keys, &r.clients,
		&m.level, &s.data[0], &s.data[1], &s.stage[0], &s.stage[1],
	}
}

func (m *meta) append(dst []byte) []byte {
	fields := m.fields()
	return appendNumbers(binary.BigEndian.AppendUint16(append(dst, metaMagic...), formatVersion), fields[:])
}

func appendNumbers(dst []byte, fields []*uint64) []byte {
	for _, f := range fields {
		dst = binary.BigEndian.AppendUint64(dst, *f)
	}
	return dst
}

// parseMeta decodes the meta record. It returns fault.Invalid if another program or another format version has written
// the record, and fault.Corrupt if the record is damaged.
func parseMeta(b []byte) (meta, error) {
	rest, ok := bytes.CutPrefix(b, []byte(metaMagic))
	if !ok || len(rest) < 2 {
		return meta{}, errForeign()
	}
	if v := binary.BigEndian.Uint16(rest); v != formatVersion {
		return meta{}, &fault.Error{
			Code: fault.Invalid, Op: "kv.Open",
			Msg:  fmt.Sprintf("the database has format version %d, this build understands %d", v, formatVersion),
			Hint: "run the version that wrote it, or a newer one; nothing was changed",
		}
	}
	if len(b) != metaSize {
		return meta{}, fault.New(fault.Corrupt, "kv.Open", "the meta record is damaged")
	}
	var m meta
	for i, f := range m.fields() {
		*f = binary.BigEndian.Uint64(rest[2+8*i:])
	}
	if l := m.replaced.live; l != 0 && l != uint64(otherTables) {
		return meta{}, fault.New(fault.Corrupt, "kv.Open", "the meta record is damaged")
	}
	return m, nil
}

func errForeign() error {
	return &fault.Error{
		Code: fault.Invalid, Op: "kv.Open",
		Msg:  "the directory holds a database of another program, or one whose creation was interrupted",
		Hint: "check the data directory; remove it if it never held data",
	}
}
