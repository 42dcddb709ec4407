package frames

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"unicode/utf16"
)

// The bounds of a message of TDS.
const (
	maxColumns  = 64
	maxMessages = 1000 // errors and notices, which the library keeps
	maxSized    = 8000 // bytes of a value with a length of two bytes
	maxProgram  = 124  // characters of the name of the server; the library stores their size in one byte
)

// The tokens of TDS that a message may have.
const (
	tdsStatus     = 0x79
	tdsColumns    = 0x81
	tdsTables     = 0xa4
	tdsSources    = 0xa5
	tdsOrder      = 0xa9
	tdsError      = 0xaa
	tdsNotice     = 0xab
	tdsLogin      = 0xad
	tdsFeatures   = 0xae
	tdsRow        = 0xd1
	tdsRowNulls   = 0xd2
	tdsEnv        = 0xe3
	tdsSSPI       = 0xed
	tdsDone       = 0xfd
	tdsDoneProc   = 0xfe
	tdsDoneInProc = 0xff
)

// tdsTokens reads the tokens of a complete message.
type tdsTokens struct {
	rest     []byte // rest of the message; it begins with the header of a packet if left is 0
	left     int    // remaining data bytes of the packet at the beginning of rest
	seen     int64  // bytes that were read
	size     int64  // bytes of the message
	sspi     bool
	columns  []tdsType
	messages int
	err      error
}

// tdsType is the type of a column.
type tdsType struct {
	fixed   int   // bytes of each value, if values have no length field
	sizes   []int // allowed lengths of a value whose length field has one byte; NULL has 0
	longest int   // maximum length of a value whose length field has two bytes
	chunks  bool  // values have a total length of eight bytes, and come in chunks
	text    bool  // values are text in UTF-16
}

// check reads all tokens of the message, and returns an error if the message breaks a rule.
func (m *tdsTokens) check() error {
	for m.err == nil {
		if m.token() {
			m.require(len(m.rest) == 0)
			break
		}
	}
	return m.err
}

// token checks a token, and reports whether it ends the message.
func (m *tdsTokens) token() (ends bool) {
	switch kind := m.number(1); kind {
	case tdsStatus:
		m.skip(4)
	case tdsColumns:
		m.describe()
	case tdsTables, tdsSources:
		m.skip(m.number(2))
	case tdsOrder:
		n := m.number(2)
		m.require(n%2 == 0)
		m.skip(n)
	case tdsError, tdsNotice:
		m.messages++
		m.require(m.messages <= maxMessages)
		m.skip(2 + 4 + 1 + 1)
		m.skip(2 * m.number(2))
		m.name()
		m.name()
		m.skip(4)
	case tdsLogin:
		n := m.number(2)
		m.skip(1 + 4)
		name := m.number(1)
		m.require(name <= maxProgram && n >= 10+2*name)
		m.skip(n - 6)
	case tdsFeatures:
		m.features()
	case tdsRow, tdsRowNulls:
		m.row(kind == tdsRowNulls)
	case tdsEnv:
		m.environment()
	case tdsSSPI:
		m.require(m.sspi)
		m.skip(m.number(2))
		return true
	case tdsDone, tdsDoneProc, tdsDoneInProc:
		const more, fatal = 1, 0x100
		status := m.number(2)
		m.skip(2 + 8)
		return status&more == 0 || kind != tdsDoneInProc && status&fatal != 0
	default:
		m.fail("a token " + strconv.FormatInt(kind, 16) + " that was not expected")
	}
	return false
}

// describe reads the description of columns.
func (m *tdsTokens) describe() {
	n := m.number(2)
	m.require(n > 0 && n <= maxColumns)
	m.columns = m.columns[:0]
	for ; n > 0 && m.err == nil; n-- {
		const encrypted = 0x800
		m.skip(4)
		m.require(m.number(2)&encrypted == 0)
		m.columns = append(m.columns, m.kind())
		m.name()
	}
}

// kind reads the type of a column.
func (m *tdsTokens) kind() tdsType {
	const collation = 5
	integer, boolean := []int{1, 2, 4, 8}, []int{1}
	switch kind := m.number(1); kind {
	case 0x30, 0x32: // tinyint and bit that are never NULL
		return tdsType{fixed: 1}
	case 0x34: // smallint
		return tdsType{fixed: 2}
	case 0x38: // int
		return tdsType{fixed: 4}
	case 0x7f: // bigint
		return tdsType{fixed: 8}
	case 0x26: // all integers
		n := int(m.number(1))
		m.require(slices.Contains(integer, n))
		return tdsType{sizes: integer[:slices.Index(integer, n)+1]}
	case 0x68: // bit
		m.require(m.number(1) == 1)
		return tdsType{sizes: boolean}
	case 0xa5, 0xad, 0xa7, 0xaf, 0xe7, 0xef: // varbinary, binary, varchar, char, nvarchar, nchar
		n := m.number(2)
		if kind != 0xa5 && kind != 0xad {
			m.skip(collation)
		}
		m.require(n <= maxSized || n == math.MaxUint16)
		return tdsType{longest: int(n), chunks: n == math.MaxUint16, text: kind == 0xe7 || kind == 0xef}
	default:
		m.fail("a column of the type " + strconv.FormatInt(kind, 16))
	}
	return tdsType{}
}

// row reads a row. If nulls is true, the row begins with a bitmap that has a set bit for each column that is NULL.
func (m *tdsTokens) row(nulls bool) {
	m.require(len(m.columns) > 0)
	var null [maxColumns / 8]byte
	if nulls {
		for i := range (len(m.columns) + 7) / 8 {
			null[i] = byte(m.number(1)) //nolint:gosec // one byte
		}
	}
	for i, column := range m.columns {
		if null[i/8]&(1<<(i%8)) == 0 {
			m.value(column)
		}
	}
}

// value reads a value.
func (m *tdsTokens) value(column tdsType) {
	n := int64(0)
	switch {
	case column.fixed > 0:
		m.skip(int64(column.fixed))
	case column.sizes != nil:
		n = m.number(1)
		m.require(n == 0 || slices.Contains(column.sizes, int(n)))
		m.skip(n)
	case column.chunks:
		m.chunks(column.text)
	default:
		if n = m.number(2); n != math.MaxUint16 { // NULL
			m.require(n <= int64(column.longest) && (!column.text || n%2 == 0))
			m.skip(n)
		}
	}
}

// chunks reads a value in chunks. The library allocates the announced size of the value, so this size must not exceed
// the size of the message. If text is true, the number of bytes in the value must be even.
func (m *tdsTokens) chunks(text bool) {
	const null, unknown = -1, -2 // as number returns these sizes
	size, sum := m.number(8), int64(0)
	if size == null {
		return
	}
	m.require(size == unknown || size >= 0 && size <= m.size)
	for m.err == nil {
		n := m.number(4)
		if n == 0 {
			break
		}
		sum += n
		m.skip(n)
	}
	m.require(!text || sum%2 == 0)
}

// features reads the features that a login has agreed on.
func (m *tdsTokens) features() {
	const end, columnEncryption = 0xff, 4
	for m.err == nil {
		kind := m.number(1)
		if kind == end {
			return
		}
		m.require(kind != columnEncryption)
		m.skip(m.number(4))
	}
}

// environment reads a change of the environment, with one new and one old value.
func (m *tdsTokens) environment() {
	size := m.number(2)
	before := m.seen
	switch kind := m.number(1); kind {
	case 1, 2, 3, 5, 6, 11, 12, 13, 15, 16, 17, 18, 19:
		m.name()
		m.name()
	case 4: // size of packets, which the library uses unchecked
		n, err := strconv.Atoi(m.name())
		m.require(err == nil && n >= 512 && n <= math.MaxInt16)
		m.name()
	case 7: // collation
		m.require(m.number(1) == 5)
		m.skip(5)
		m.name()
	case 8: // a transaction begins
		m.require(m.number(1) == 8)
		m.skip(8)
		m.skip(m.number(1))
	case 9, 10: // a transaction ends
		m.skip(m.number(1))
		m.skip(m.number(1))
	case 20: // routing to another server
		m.skip(2)
		m.require(m.number(1) == 0)
		m.skip(2)
		m.skip(2 * m.number(2))
		m.skip(2)
	default:
		m.fail("a change of its environment that is not known")
	}
	m.require(m.seen-before == size)
}

// name reads a text whose length is stored in one byte.
func (m *tdsTokens) name() string {
	units := make([]uint16, m.number(1))
	for i := range units {
		units[i] = uint16(m.number(2)) //nolint:gosec // two bytes
	}
	return string(utf16.Decode(units))
}

// number reads a number of n bytes.
func (m *tdsTokens) number(n int) int64 {
	var raw [8]byte
	for read := 0; read < n && m.err == nil; {
		part := m.part(int64(n - read))
		copy(raw[read:], part)
		read += len(part)
	}
	return int64(binary.LittleEndian.Uint64(raw[:])) //nolint:gosec // as the protocol has it
}

// skip reads n bytes and ignores them.
func (m *tdsTokens) skip(n int64) {
	for n > 0 && m.err == nil {
		n -= int64(len(m.part(n)))
	}
}

// part reads up to n bytes, but only from one packet. At the end of the message, it sets m.err.
func (m *tdsTokens) part(n int64) []byte {
	if m.left == 0 {
		if len(m.rest) == 0 {
			m.fail("an answer that ends too early")
			return nil
		}
		m.left = int(binary.BigEndian.Uint16(m.rest[2:])) - tdsHeader
		m.rest = m.rest[tdsHeader:]
	}
	out := m.rest[:min(n, int64(m.left))]
	m.rest, m.left, m.seen = m.rest[len(out):], m.left-len(out), m.seen+int64(len(out))
	return out
}

// require sets m.err if the parameter met is false.
func (m *tdsTokens) require(met bool) {
	if !met {
		m.fail("an answer that breaks the protocol")
	}
}

func (m *tdsTokens) fail(what string) {
	if m.err == nil {
		m.err = malformed("SQL Server sent " + what)
	}
}
