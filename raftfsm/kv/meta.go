package kv

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/quorate/quorate/internal/fault"
)

// Format versions of the tables (see doc.go) that this build reads and writes. A restore gives the database version
// 2. Log entries above the first version need version 3.
const (
	formatVersion    = 1
	formatWithStage  = 2
	formatWithLevel  = 3
	formatVersionMax = formatWithLevel
)

// metaMagic distinguishes a database of this package from any other Pebble database.
const metaMagic = "quorate.kv"

const (
	metaSize      = len(metaMagic) + 2 + 8*8
	metaSizeStage = metaSize + 9*8
	metaSizeLevel = metaSizeStage + 8
)

// meta is the machine's bookkeeping, written as a whole at the end of every Apply.
type meta struct {
	applied     uint64 // index of the last entry applied
	term        uint64 // its term
	revision    uint64 // last revision or origin number given
	clock       uint64 // cluster time, Unix milliseconds
	keys        uint64 // number of data records
	hash        uint64 // rolling hash of everything applied
	clientFirst uint64 // client queue: number of the oldest item
	clientNext  uint64 // client queue: number of the next item

	replaced replaced

	// level is the highest version of log entries that the group may hold; 0 means the first version. It never
	// decreases.
	level uint64
}

// tables is the live set.
func (m *meta) tables() tables { return tables(m.replaced.live) }

func (m *meta) fields() [8]*uint64 {
	return [...]*uint64{
		&m.applied, &m.term, &m.revision, &m.clock, &m.keys, &m.hash, &m.clientFirst, &m.clientNext,
	}
}

func (m *meta) append(dst []byte) []byte {
	dst = append(dst, metaMagic...)
	own, stage := m.fields(), m.replaced.fields()
	dst = appendNumbers(binary.BigEndian.AppendUint16(dst, m.version()), own[:])
	if m.version() >= formatWithStage {
		dst = appendNumbers(dst, stage[:])
	}
	if m.version() >= formatWithLevel {
		dst = binary.BigEndian.AppendUint64(dst, m.level)
	}
	return dst
}

// version returns the lowest format version that can represent m. So older builds can open the database whenever
// possible.
func (m *meta) version() uint16 {
	switch {
	case m.level != 0:
		return formatWithLevel
	case m.replaced != (replaced{}):
		return formatWithStage
	default:
		return formatVersion
	}
}

func appendNumbers(dst []byte, fields []*uint64) []byte {
	for _, f := range fields {
		dst = binary.BigEndian.AppendUint64(dst, *f)
	}
	return dst
}

// parseMeta reads the meta record. It returns fault.Invalid for a record of another program or of a newer version,
// and fault.Corrupt for a damaged one.
func parseMeta(b []byte) (meta, error) {
	rest, ok := bytes.CutPrefix(b, []byte(metaMagic))
	if !ok || len(rest) < 2 {
		return meta{}, errForeign()
	}
	v := binary.BigEndian.Uint16(rest)
	if v < formatVersion || v > formatVersionMax {
		return meta{}, &fault.Error{
			Code: fault.Invalid, Op: "kv.Open",
			Msg: fmt.Sprintf("the database has format version %d, this build understands up to %d", v,
				formatVersionMax),
			Hint: "run the version that wrote it, or a newer one; nothing was changed",
		}
	}
	if len(b) != [...]int{formatVersion: metaSize, formatWithStage: metaSizeStage, formatWithLevel: metaSizeLevel}[v] {
		return meta{}, fault.New(fault.Corrupt, "kv.Open", "the meta record is damaged")
	}
	var m meta
	for i, f := range m.fields() {
		*f = binary.BigEndian.Uint64(rest[2+8*i:])
	}
	if v >= formatWithStage {
		for i, f := range m.replaced.fields() {
			*f = binary.BigEndian.Uint64(b[metaSize+8*i:])
		}
	}
	if v >= formatWithLevel {
		m.level = binary.BigEndian.Uint64(b[metaSizeStage:])
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
