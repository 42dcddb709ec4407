package http

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// tally counts the parts of a request body that need more memory decoded than encoded. A list of empty items, for
// example, needs a hundred times its encoded size. Requests reserve memory according to these counts before they
// decode the body.
type tally struct {
	list     int // elements of the list that has a limit
	metadata int // entries of the largest metadata
	entries  int // of all metadata
}

// The number of bytes that decoding allocates for one list element and for one metadata entry, measured and rounded
// up. decodedFree is how many of these bytes the reservation for the body itself already covers.
const (
	decodedItem  = 1 << 10
	decodedEntry = 256
	decodedFree  = 2 << 10
)

// memory returns the bytes that decoding takes, not counting copies of the body.
func (t *tally) memory() int64 {
	return max(int64(t.list)*decodedItem+int64(t.entries)*decodedEntry-decodedFree, 0)
}

// scanner parses JSON without allocating memory, and counts its parts. For invalid JSON the counts may be wrong. That
// is harmless, because the decoder rejects invalid JSON before it allocates memory.
type scanner struct {
	body []byte
	pos  int
	tally
}

// tallyItems counts the body of a save: a list of items.
func tallyItems(body []byte) tally {
	s := scanner{body: body}
	s.list = s.array(scanItem)
	return s.tally
}

// tallyOperations counts the body of an actor transaction: a list of operations.
func tallyOperations(body []byte) tally {
	s := scanner{body: body}
	s.list = s.array(scanOperation)
	return s.tally
}

// tallyTransaction counts the body of a transaction.
func tallyTransaction(body []byte) tally {
	s := scanner{body: body}
	s.object(func(s *scanner, name []byte) {
		switch {
		case isName(name, "operations"):
			s.list = max(s.list, s.array(scanOperation)) // the decoder uses the last of several lists; this is a bound
		default:
			scanMetadata(s, name)
		}
	})
	return s.tally
}

// tallyBulk counts the body of a bulk read.
func tallyBulk(body []byte) tally {
	s := scanner{body: body}
	s.object(func(s *scanner, name []byte) {
		switch {
		case isName(name, "keys"):
			s.list = max(s.list, s.array((*scanner).skip))
		default:
			scanMetadata(s, name)
		}
	})
	return s.tally
}

// tallyBinding counts the body of a binding call.
func tallyBinding(body []byte) tally {
	s := scanner{body: body}
	s.object(scanMetadata)
	return s.tally
}

func scanItem(s *scanner) { s.object(scanMetadata) }

func scanOperation(s *scanner) {
	s.object(func(s *scanner, name []byte) {
		if isName(name, "request") {
			scanItem(s)
			return
		}
		s.skip()
	})
}

func scanMetadata(s *scanner, name []byte) {
	if !isName(name, "metadata") {
		s.skip()
		return
	}
	n := s.object(func(s *scanner, _ []byte) { s.skip() })
	s.entries += n
	s.metadata = max(s.metadata, n)
}

// isName reports whether the JSON decoder would assign the member name raw to the field. raw is as written in the
// body; the decoder resolves escapes and ignores case.
func isName(raw []byte, field string) bool {
	const longest = len(`\u0000`)
	if len(raw) < len(field) || len(raw) > longest*len(field) {
		return false
	}
	for _, c := range raw {
		if c == '\\' || c >= utf8.RuneSelf {
			var name string
			return json.Unmarshal([]byte(`"`+string(raw)+`"`), &name) == nil && strings.EqualFold(name, field)
		}
	}
	return len(raw) == len(field) && strings.EqualFold(string(raw), field)
}

// object reads a JSON object and returns the number of its members. Before each value, it calls the given function,
// which must read or skip that value. If the next JSON value is not an object, object skips the value and returns 0.
func (s *scanner) object(member func(s *scanner, name []byte)) (n int) {
	if s.space(); s.peek() != '{' {
		s.skip()
		return 0
	}
	for s.pos++; s.more('}'); n++ {
		if s.peek() != '"' {
			s.pos = len(s.body) // not JSON
			return n
		}
		start := s.pos + 1
		s.text()
		name := s.body[start:max(start, s.pos-1)]
		if s.space(); s.peek() == ':' {
			s.pos++
		}
		member(s, name)
	}
	return n
}

// array reads a JSON array and returns the number of its elements. Before each element, it calls the given function,
// which must read or skip that element. If the next JSON value is not an array, array skips the value and returns 0.
func (s *scanner) array(element func(s *scanner)) (n int) {
	if s.space(); s.peek() != '[' {
		s.skip()
		return 0
	}
	for s.pos++; s.more(']'); n++ {
		element(s)
	}
	return n
}

// more moves to the next element or member, or past the end.
func (s *scanner) more(end byte) bool {
	s.space()
	if s.peek() == ',' {
		s.pos++
		s.space()
	}
	switch s.peek() {
	case end:
		s.pos++
		return false
	case 0, ']', '}', ',', ':':
		s.pos = len(s.body) // not JSON
		return false
	default:
		return true
	}
}

// skip moves past a value.
func (s *scanner) skip() {
	s.space()
	for depth := 0; s.pos < len(s.body); {
		switch s.body[s.pos] {
		case '"':
			if s.text(); depth == 0 {
				return
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return // the end of the enclosing value
			}
			if depth--; depth == 0 {
				s.pos++
				return
			}
		case ',':
			if depth == 0 {
				return
			}
		}
		s.pos++
	}
}

// text moves past a string.
func (s *scanner) text() {
	for s.pos++; s.pos < len(s.body); s.pos++ {
		switch s.body[s.pos] {
		case '\\':
			s.pos++
		case '"':
			s.pos++
			return
		}
	}
	s.pos = len(s.body)
}

func (s *scanner) space() {
	for s.pos < len(s.body) {
		switch s.body[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

// peek returns the next byte, or 0 at the end.
func (s *scanner) peek() byte {
	if s.pos >= len(s.body) {
		return 0
	}
	return s.body[s.pos]
}
