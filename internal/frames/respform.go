package frames

import (
	"bytes"
	"strconv"
	"strings"
)

// form checks the form of a reply of a sentinel, or of a message to a subscriber. It returns an error if go-redis would
// panic. The parameter address is true if the client has requested the address of a master.
func (r *RESP) form(reply []byte, address bool) error {
	kind, elements := parts(reply)
	if !strings.ContainsRune("*~>", rune(kind)) {
		return nil // the library returns an error for types that it does not expect
	}
	if address && len(elements) != 2 {
		return malformed("a sentinel sent an address that is no pair of host and port")
	}
	if r.requests.subscribed && !wellFormed(elements) {
		return malformed("Redis sent a message of another form than subscribers expect")
	}
	return nil
}

// part is one element of an array.
type part struct {
	kind byte   // type of the element; 0 = null
	text string // the content of a string or number
	all  []part // the elements of an array
}

func (p part) isText() bool { return p.kind == '$' || p.kind == '+' || p.kind == '=' }

// wellFormed reports whether go-redis can read a message to a subscriber without a panic. The first of its elements e
// must be a text. If go-redis does not know this type of message, the result is true.
func wellFormed(e []part) bool {
	if len(e) == 0 || !e[0].isText() {
		return false
	}
	texts := func(n int) bool {
		if len(e) < n {
			return false
		}
		for _, p := range e[1:n] {
			if !p.isText() {
				return false
			}
		}
		return true
	}
	switch kind := e[0].text; {
	case strings.HasSuffix(kind, "subscribe"):
		return len(e) >= 3 && e[2].kind == ':'
	case kind == "pmessage":
		return texts(4)
	case kind == "message" || kind == "smessage":
		if !texts(2) || len(e) < 3 {
			return false
		}
		for _, p := range e[2].all {
			if !p.isText() {
				return false
			}
		}
		// A sentinel announces: name, old host, old port, new host, new port.
		return e[1].text != "+switch-master" || strings.Count(e[2].text, " ") >= 4
	case kind == "pong":
		return texts(2)
	}
	return true
}

// parts returns the type and the elements of a reply that RESP has checked. It parses two levels: the elements of the
// reply, and the elements of those elements. It leaves out deeper levels and attributes.
func parts(reply []byte) (byte, []part) {
	p, _ := parse(reply, 2)
	return p.kind, p.all
}

// parse parses the first element of p, and returns it with the bytes that follow it. It leaves out elements that are
// nested deeper than depth.
func parse(p []byte, depth int) (part, []byte) {
	line, rest, _ := bytes.Cut(p, []byte("\r\n"))
	if len(line) == 0 {
		return part{}, nil
	}
	out := part{kind: line[0], text: string(line[1:])}
	if strings.IndexByte("$=!*~>%|", out.kind) < 0 {
		return out, rest
	}
	n, err := strconv.Atoi(out.text)
	if err != nil || n < 0 {
		return part{}, rest
	}
	if strings.IndexByte("$=!", out.kind) >= 0 {
		n = min(n, len(rest))
		out.text = string(rest[:n])
		return out, rest[min(n+2, len(rest)):]
	}
	if out.kind == '%' || out.kind == '|' {
		n *= 2
	}
	for range n {
		var one part
		if one, rest = parse(rest, depth-1); depth > 0 {
			out.all = append(out.all, one)
		}
	}
	if out.kind == '|' {
		return parse(rest, depth)
	}
	return out, rest
}
