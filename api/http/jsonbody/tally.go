package jsonbody

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// Tally counts the parts of a request body that need much more memory when decoded. For example, a decoded list of
// empty items needs more than a hundred times its encoded size. A handler reserves memory for these parts before it
// decodes the body.
type Tally struct {
	List     int // number of elements of the list that has a limit
	Metadata int // number of entries of the largest metadata object
	entries  int // number of entries of all metadata objects
}

// decodedItem and decodedEntry are the bytes of memory for decoding one list element and one metadata entry. Both were
// measured and rounded up. decodedFree is the number of bytes that the memory reserved for the body already covers.
const (
	decodedItem  = 1 << 10
	decodedEntry = 256
	decodedFree  = 2 << 10
)

// Memory returns how many bytes of memory the decoding of the body needs, not counting copies of the body.
func (t *Tally) Memory() int64 {
	return max(int64(t.List)*decodedItem+int64(t.entries)*decodedEntry-decodedFree, 0)
}

// scanner parses a JSON text and counts the elements and entries that Tally describes. It allocates almost no memory.
// The counts may be wrong for invalid JSON. That is harmless, because the decoder rejects invalid JSON before it
// allocates memory for the parts.
type scanner struct {
	body []byte
	pos  int
	Tally
}

// TallyItems counts the parts of the body of a save, which is a list of items.
func TallyItems(body []byte) Tally {
	s := scanner{body: body}
	s.List = s.array(scanItem)
	return s.Tally
}

// TallyOperations counts the parts of the body of an actor transaction, which is a list of operations.
func TallyOperations(body []byte) Tally {
	s := scanner{body: body}
	s.List = s.array(scanOperation)
	return s.Tally
}

// TallyTransaction counts the parts of the body of a state transaction.
func TallyTransaction(body []byte) Tally {
	s := scanner{body: body}
	s.object(func(s *scanner, name []byte) {
		switch {
		case isName(name, "operations"):
			s.List = max(s.List, s.array(scanOperation)) // an upper bound: the decoder uses the last of several lists
		default:
			scanMetadata(s, name)
		}
	})
	return s.Tally
}

// TallyBulk counts the parts of the body of a bulk read.
func TallyBulk(body []byte) Tally {
	s := scanner{body: body}
	s.object(func(s *scanner, name []byte) {
		switch {
		case isName(name, "keys"):
			s.List = max(s.List, s.array((*scanner).skip))
		default:
			scanMetadata(s, name)
		}
	})
	return s.Tally
}

// TallyBinding counts the parts of the body of a binding call.
func TallyBinding(body []byte) Tally {
	s := scanner{body: body}
	s.object(scanMetadata)
	return s.Tally
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
	s.Metadata = max(s.Metadata, n)
}

// isName reports whether the JSON decoder would store an object member in the given field. raw is the name of the
// member as it is written in the body. Like the decoder, isName resolves escapes and ignores case.
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

// object reads a JSON object and returns the number of its members. It calls the given function for each member, to
// read or skip the value. If the next JSON value is not an object, it is skipped, and the result is 0.
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

// array reads a JSON array and returns the number of its elements. It calls the given function for each element, to
// read or skip it. If the next JSON value is not an array, it is skipped, and the result is 0.
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

// more moves to the next element of an array or the next member of an object, and returns true. After the last one, it
// moves past the closing bracket (end) and returns false. If the text is not JSON, it moves to the end of the body and
// returns false.
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

// skip moves past the next value, whatever its type.
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
