package jsonbody

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// plainSave decodes the usual body of a save without reflection. The items equal those from Decode, and do not refer to
// body. capacity is the expected number of items. If the body is unusual or invalid, plainSave returns false, and the
// caller must call Decode.
//
// In a usual body, member names are in lower case and occur once, and only the values contain escapes.
func plainSave(body []byte, capacity int) ([]itemBody, bool) {
	if !utf8.Valid(body) {
		return nil, false
	}
	p := plainScanner{scanner{body: body}}
	if !p.token('[') {
		return nil, false
	}
	items := make([]itemBody, 0, capacity)
	if p.token(']') {
		return items, true
	}
	for {
		items = append(items, itemBody{})
		if !p.item(&items[len(items)-1]) {
			return nil, false
		}
		if p.token(']') {
			return items, true
		}
		if !p.token(',') {
			return nil, false
		}
	}
}

// plainScanner parses JSON strictly. Each method reads one kind of token or value, and returns false if the next part
// of the body is of another kind.
type plainScanner struct{ scanner }

// token moves past white space and the character c.
func (p *plainScanner) token(c byte) bool {
	if p.space(); p.peek() != c {
		return false
	}
	p.pos++
	return true
}

// plain reads a string without escapes.
func (p *plainScanner) plain() ([]byte, bool) {
	if !p.token('"') {
		return nil, false
	}
	start := p.pos
	for ; p.pos < len(p.body); p.pos++ {
		switch c := p.body[p.pos]; {
		case c == '"':
			p.pos++
			return p.body[start : p.pos-1], true
		case c == '\\', c < ' ':
			return nil, false
		}
	}
	return nil, false
}

// into reads a string without escapes into s.
func (p *plainScanner) into(s *string) bool {
	b, ok := p.plain()
	*s = string(b)
	return ok
}

// value reads any JSON value.
func (p *plainScanner) value(v *json.RawMessage) bool {
	p.space()
	start := p.pos
	if _, ok := p.plain(); !ok {
		p.pos = start
		p.skip()
		for p.pos > start && isSpace(p.body[p.pos-1]) {
			p.pos--
		}
		if !json.Valid(p.body[start:p.pos]) {
			return false
		}
	}
	*v = bytes.Clone(p.body[start:p.pos])
	return true
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// members reads a JSON object. It calls the given function with each name, to read the value. It returns false if the
// function does, if a name contains an escape, or if the next part of the body is no object.
func (p *plainScanner) members(member func(name []byte) bool) bool {
	if !p.token('{') {
		return false
	}
	if p.token('}') {
		return true
	}
	for {
		name, ok := p.plain()
		if !ok || !p.token(':') || !member(name) {
			return false
		}
		if p.token('}') {
			return true
		}
		if !p.token(',') {
			return false
		}
	}
}

func (p *plainScanner) item(b *itemBody) bool {
	seen := 0
	once := func(bit int) bool {
		again := seen&bit != 0
		seen |= bit
		return !again
	}
	return p.members(func(name []byte) bool {
		switch string(name) {
		case "key":
			return once(1) && p.into(&b.Key)
		case "value":
			return once(2) && p.value(&b.Value)
		case "etag":
			return once(4) && p.into(&b.ETag)
		case "metadata":
			return once(8) && p.metadata(&b.Metadata)
		case "options":
			return once(16) && p.members(func(name []byte) bool {
				switch string(name) {
				case "concurrency":
					return once(32) && p.into(&b.Options.Concurrency)
				case "consistency":
					return once(64) && p.into(&b.Options.Consistency)
				}
				return false
			})
		}
		return false
	})
}

func (p *plainScanner) metadata(m *map[string]string) bool {
	*m = map[string]string{}
	return p.members(func(name []byte) bool {
		var v string
		ok := p.into(&v)
		(*m)[string(name)] = v
		return ok
	})
}
