package sqlserver_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"unicode/utf16"
)

// Kinds of packets and tokens of the protocol TDS 7.4.
const (
	packetBatch     = 0x01
	packetRPC       = 0x03
	packetAnswer    = 0x04
	packetAttention = 0x06
	packetTx        = 0x0e
	packetLogin     = 0x10
	packetPrelogin  = 0x12

	tokenStatus  = 0x79
	tokenColumns = 0x81
	tokenError   = 0xaa
	tokenLogin   = 0xad
	tokenRow     = 0xd1
	tokenEnv     = 0xe3
	tokenDone    = 0xfd
	tokenDoneRPC = 0xfe
	tokenDoneIn  = 0xff

	typeNull     = 0x1f
	typeInt      = 0x26
	typeBit      = 0x68
	typeVarbin   = 0xa5
	typeBinary   = 0xad
	typeNVarchar = 0xe7
)

// message reads a message of one or several packets. Each packet has a header of 8 bytes. A flag in the header marks
// the last packet.
func message(in io.Reader) (kind byte, body []byte, err error) {
	for {
		var header [8]byte
		if _, err := io.ReadFull(in, header[:]); err != nil {
			return 0, nil, err
		}
		size := int(binary.BigEndian.Uint16(header[2:])) - len(header)
		at := len(body)
		body = append(body, make([]byte, size)...)
		if _, err := io.ReadFull(in, body[at:]); err != nil {
			return 0, nil, err
		}
		if header[1]&1 != 0 {
			return header[0], body, nil
		}
	}
}

// answer sends a message in packets of the size that the server has announced at the login.
func answer(c net.Conn, body []byte) error {
	const most = 4096 - 8
	for number := byte(1); ; number++ {
		part := body[:min(len(body), most)]
		body = body[len(part):]
		header := []byte{packetAnswer, 0, 0, 0, 0, 0, number, 0}
		if len(body) == 0 {
			header[1] = 1
		}
		binary.BigEndian.PutUint16(header[2:], uint16(len(part)+len(header))) //nolint:gosec // at most 4096
		if _, err := c.Write(append(header, part...)); err != nil || len(body) == 0 {
			return err
		}
	}
}

// parser reads the parts of a message. It panics if there are fewer bytes than the message announces.
type parser struct{ rest []byte }

func (p *parser) bytes(n int) []byte {
	out := p.rest[:n]
	p.rest = p.rest[n:]
	return out
}
func (p *parser) byte() byte     { return p.bytes(1)[0] }
func (p *parser) uint16() uint16 { return binary.LittleEndian.Uint16(p.bytes(2)) }
func (p *parser) uint32() uint32 { return binary.LittleEndian.Uint32(p.bytes(4)) }
func (p *parser) uint64() uint64 { return binary.LittleEndian.Uint64(p.bytes(8)) }

// headers skips the headers of a request.
func (p *parser) headers() { p.bytes(int(p.uint32()) - 4) }

// text reads n UTF-16 code units.
func (p *parser) text(n int) string { return text(p.bytes(2 * n)) }

func text(raw []byte) string {
	units := make([]uint16, len(raw)/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(raw[2*i:])
	}
	return string(utf16.Decode(units))
}

func units(s string) []byte {
	var out []byte
	for _, u := range utf16.Encode([]rune(s)) {
		out = binary.LittleEndian.AppendUint16(out, u)
	}
	return out
}

// parameter reads a parameter of a procedure: nil, string, []byte, int64 or bool.
func (p *parser) parameter() (name string, value any) {
	name = p.text(int(p.byte()))
	p.byte() // flags
	kind := p.byte()
	switch kind {
	case typeNull:
		return name, nil
	case typeInt, typeBit:
		p.byte() // largest size of the type
		raw := p.bytes(int(p.byte()))
		n := int64(0)
		switch len(raw) {
		case 0:
			return name, nil
		case 1:
			n = int64(raw[0])
		case 4:
			n = int64(int32(binary.LittleEndian.Uint32(raw))) //nolint:gosec // as it was sent
		case 8:
			n = int64(binary.LittleEndian.Uint64(raw)) //nolint:gosec // as it was sent
		}
		if kind == typeBit {
			return name, n != 0
		}
		return name, n
	case typeNVarchar, typeVarbin:
		size := p.uint16()
		if kind == typeNVarchar {
			p.bytes(5) // collation
		}
		raw := p.chunks(size == math.MaxUint16)
		switch {
		case raw == nil:
			return name, nil
		case kind == typeNVarchar:
			return name, text(raw)
		}
		return name, raw
	}
	panic(fmt.Sprintf("the fake does not know the type %#x", kind))
}

// chunks reads a value that has its length before it, or several chunks if partial is true. It returns nil for NULL.
func (p *parser) chunks(partial bool) []byte {
	if !partial {
		size := p.uint16()
		if size == math.MaxUint16 {
			return nil
		}
		return bytes.Clone(append([]byte{}, p.bytes(int(size))...))
	}
	if p.uint64() == math.MaxUint64 {
		return nil
	}
	out := []byte{}
	for {
		size := p.uint32()
		if size == 0 {
			return out
		}
		out = append(out, p.bytes(int(size))...)
	}
}

// request is a batch, with its parameters by name.
type request struct {
	text   string
	types  string // declaration of the parameters
	params map[string]any
	rpc    bool
}

func parseBatch(body []byte) request {
	p := parser{body}
	p.headers()
	return request{text: text(p.rest), params: map[string]any{}}
}

// parseRPC reads a call of sp_executesql.
func parseRPC(body []byte) (request, error) {
	const executeSQL = 10
	p := parser{body}
	p.headers()
	if p.uint16() != math.MaxUint16 || p.uint16() != executeSQL {
		return request{}, errors.New("the fake knows no procedure except sp_executesql")
	}
	p.uint16() // flags
	r := request{params: map[string]any{}, rpc: true}
	_, statement := p.parameter()
	_, declared := p.parameter()
	r.text, r.types = statement.(string), declared.(string)
	for len(p.rest) > 0 {
		name, value := p.parameter()
		r.params[name] = value
	}
	return r, nil
}

// login has the values that a client sends when it signs in.
type login struct {
	user, password, database, app string
	version                       uint32
	asked                         byte // encryption that the prelogin has requested
}

func parseLogin(body []byte) login {
	field := func(at int) string {
		from, size := binary.LittleEndian.Uint16(body[at:]), binary.LittleEndian.Uint16(body[at+2:])
		return text(body[from : from+2*size])
	}
	from, size := binary.LittleEndian.Uint16(body[44:]), binary.LittleEndian.Uint16(body[46:])
	hidden := bytes.Clone(body[from : from+2*size])
	for i, b := range hidden {
		b ^= 0xa5
		hidden[i] = b<<4 | b>>4
	}
	return login{user: field(40), password: text(hidden), app: field(48), database: field(68),
		version: binary.LittleEndian.Uint32(body[4:])}
}

// tokens collects the tokens of an answer.
type tokens struct{ bytes.Buffer }

func (t *tokens) put(values ...any) {
	for _, v := range values {
		switch v := v.(type) {
		case string: // after its length in one byte
			t.WriteByte(byte(len(utf16.Encode([]rune(v))))) //nolint:gosec // short
			t.Write(units(v))
		case []byte:
			t.Write(v)
		default:
			if err := binary.Write(t, binary.LittleEndian, v); err != nil {
				panic(err)
			}
		}
	}
}

// sized writes a token, the length of values in two bytes, and the values.
func (t *tokens) sized(token byte, values ...any) {
	var inner tokens
	inner.put(values...)
	t.put(token, uint16(inner.Len()), inner.Bytes()) //nolint:gosec // short
}

func (t *tokens) done(token byte, status uint16, rows int) {
	t.put(token, status, uint16(0), uint64(rows)) //nolint:gosec // not negative
}

// refuse writes an error token.
func (t *tokens) refuse(number int32, class byte, msg string) {
	raw := units(msg)
	t.sized(tokenError, number, byte(1), class, uint16(len(raw)/2), raw, "fake", "", int32(1)) //nolint:gosec // short
}

// prelogin writes an answer to the prelogin with the value encrypts of the encryption option.
func (t *tokens) prelogin(encrypts byte) {
	const options = 2*5 + 1
	t.put([]byte{0, 0, options, 0, 6, 1, 0, options + 6, 0, 1, 0xff}, []byte{16, 0, 0, 0, 0, 0}, encrypts)
}

// welcome writes an answer that accepts a login.
func (t *tokens) welcome(database string) {
	t.sized(tokenEnv, byte(1), database, "master")
	t.sized(tokenEnv, byte(4), "4096", "4096")
	t.sized(tokenLogin, byte(1), []byte{0x74, 0, 0, 4}, "Microsoft SQL Server", []byte{16, 0, 0, 0})
	t.done(tokenDone, 0, 0)
}

// transaction writes a token about a transaction: its begin (8), commit (9) or rollback (10).
func (t *tokens) transaction(event byte, id uint64) {
	number := append([]byte{8}, binary.LittleEndian.AppendUint64(nil, id)...)
	if event == 8 {
		t.sized(tokenEnv, event, number, byte(0))
		return
	}
	t.sized(tokenEnv, event, byte(0), number)
}

// result has the columns and rows that a statement returns.
type result struct {
	names []string
	kinds []byte
	rows  [][]any
}

func (t *tokens) result(r result) {
	const collation = "\x09\x04\xd0\x00\x34"
	t.put(byte(tokenColumns), uint16(len(r.kinds))) //nolint:gosec // few
	for i, kind := range r.kinds {
		t.put(uint32(0), uint16(1), kind)
		switch kind {
		case typeInt:
			t.put(byte(8))
		case typeBit:
			t.put(byte(1))
		case typeBinary:
			t.put(uint16(8))
		case typeVarbin:
			t.put(uint16(math.MaxUint16))
		case typeNVarchar:
			t.put(uint16(math.MaxUint16), []byte(collation))
		}
		t.put(r.names[i])
	}
	for _, row := range r.rows {
		t.put(byte(tokenRow))
		for i, v := range row {
			t.value(r.kinds[i], v)
		}
	}
}

func (t *tokens) value(kind byte, v any) {
	switch {
	case v == nil && (kind == typeNVarchar || kind == typeVarbin):
		t.put(uint64(math.MaxUint64))
	case v == nil && kind == typeBinary:
		t.put(uint16(math.MaxUint16))
	case v == nil:
		t.put(byte(0))
	case kind == typeInt:
		t.put(byte(8), v.(int64))
	case kind == typeBit:
		t.put(byte(1), v.(bool))
	case kind == typeBinary:
		t.put(uint16(8), v.([]byte))
	default:
		raw, ok := v.([]byte)
		if !ok {
			raw = units(v.(string))
		}
		t.put(uint64(len(raw)))
		if len(raw) > 0 {
			t.put(uint32(len(raw)), raw) //nolint:gosec // small
		}
		t.put(uint32(0))
	}
}
