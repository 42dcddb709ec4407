package frames

import (
	"bytes"
	"strconv"
	"strings"
)

// The bounds of replies of Redis, in addition to those of NewRESP.
const (
	maxLine       = 64 << 10 // bytes of a line, which is a status, an error, a number or a length
	maxElements   = 1 << 19  // elements in all replies to the last request; CLUSTER SLOTS has the most
	maxDepth      = 16       // depth of arrays in arrays; COMMAND has 9
	maxAttributes = 64       // attributes in one reply
	maxShort      = 1 << 20  // bytes of a reply of a sentinel, and of a message to a subscriber
	overhead      = 1 << 20  // bytes that replies may have beside the longest string
)

// RESP checks the replies of a Redis server in the protocols RESP2 and RESP3. It limits:
//
//   - the length of lines and strings
//   - the number of elements, and how deep they are nested
//   - the total size of the replies since the last request
//
// A reply without a request is an error, unless it is a push or a message to a subscriber. Strings above 64 KiB are
// held until they are complete.
//
// go-redis panics if a reply of a sentinel, or a message to a subscriber, has a wrong form. So RESP holds such a reply
// or message until it is complete, and checks its form.
type RESP struct {
	longest  int64 // maximum bytes of a string
	requests requests
	unknown  bool // the client has sent bytes that are no command in a known form

	line   []byte // begin of the current line, which has not ended
	size   int    // bytes of this line
	left   int64  // bytes of the current string, with its line end
	stack  []aggregate
	within bool // a reply has begun and not ended
	kind   byte // type of this reply
	strict bool // the form of this reply is checked
	held   int

	attributes int   // number of attributes in this reply
	total      int64 // bytes since the last write; of a subscriber: of the current message
	elements   int   // number of elements in the replies that total counts
}

// aggregate is an array, map, set, push or attribute that is not complete.
type aggregate struct {
	left      int
	attribute bool
}

// NewRESP returns a checker for one connection. It allows strings of up to longest bytes.
func NewRESP(longest int64) *RESP { return &RESP{longest: longest} }

// Sent implements Checker.
func (r *RESP) Sent(p []byte) {
	r.unknown = r.unknown || !r.requests.sent(p)
	if !r.within {
		r.total, r.elements = 0, 0
	}
}

// Check implements Checker.
func (r *RESP) Check(unseen []byte, fresh int) (int, error) {
	for at := len(unseen) - fresh; at < len(unseen); {
		if err := r.begin(unseen[at]); err != nil {
			return 0, err
		}
		n, ended, err := r.piece(unseen[at:])
		at += n
		if err == nil && ended {
			err = r.end(unseen[:at], n)
		}
		if err != nil {
			return 0, err
		}
	}
	return r.held, nil
}

// begin begins a reply of the given type, unless one has begun.
func (r *RESP) begin(kind byte) error {
	if r.within {
		return nil
	}
	waiting := r.requests.waiting
	if len(waiting) == 0 && !r.requests.subscribed && !r.unknown && kind != '>' {
		return malformed("Redis sent a reply without a request")
	}
	r.within = true
	r.strict = r.requests.subscribed || len(waiting) > 0 && waiting[0].sentinel
	return nil
}

// piece consumes the bytes at the start of p that belong to the current string or line, and returns their number. ended
// is true if these bytes complete the string or line. piece returns an error if a limit is exceeded.
func (r *RESP) piece(p []byte) (n int, ended bool, err error) {
	if r.left > 0 {
		n = int(min(r.left, int64(len(p))))
		r.left -= int64(n)
		ended = r.left == 0
	} else {
		at := bytes.IndexByte(p, '\n')
		n, ended = at+1, at >= 0
		if !ended {
			n = len(p)
		}
		if r.size += n; r.size > maxLine {
			return 0, false, tooLarge("a line of Redis has more than " + strconv.Itoa(maxLine) + " bytes")
		}
		r.line = append(r.line, p[:min(n, max(0, maxWord-len(r.line)))]...)
	}
	if r.total += int64(n); r.total > r.bound() {
		return 0, false, tooLarge("the answer of Redis has more than " + strconv.FormatInt(r.bound(), 10) + " bytes")
	}
	if r.strict || r.held > 0 { // a reply whose form is checked, or a long string
		r.held += n
	}
	return n, ended, nil
}

// bound returns the maximum of r.total, which is the total size of the replies since the last request.
func (r *RESP) bound() int64 {
	if r.strict {
		return maxShort
	}
	return r.longest + overhead
}

// end handles the end of a string or line. unseen has all bytes up to this end that the client has not seen yet. n is
// the number of bytes in the last part of the string or line.
func (r *RESP) end(unseen []byte, n int) error {
	complete, err := r.value(n)
	if err != nil || !complete {
		return err
	}
	if complete = r.element(); !complete {
		return nil
	}
	return r.complete(unseen[len(unseen)-r.held:])
}

// value handles the end of a string or line whose last part has n bytes. It returns true if an element is now complete.
// A string completes an element. A line completes an element unless it announces something that follows: a string, or
// the elements of an aggregate.
func (r *RESP) value(n int) (bool, error) {
	if r.size == 0 { // a string
		if !r.strict {
			r.held = 0
		}
		return true, nil
	}
	line, size := r.line, r.size
	r.line, r.size = r.line[:0], 0
	if size < 3 || size <= maxWord && line[size-2] != '\r' {
		return false, malformed("Redis sent a line without an end")
	}
	kind := line[0]
	if len(r.stack) == 0 && kind != '|' {
		r.kind = kind
	}
	switch kind {
	case '+', '-', ':', '_', ',', '#', '(':
		return true, nil
	case '$', '=', '!', '*', '~', '>', '%', '|':
		length, err := strconv.ParseInt(strings.TrimSuffix(string(line[1:]), "\r\n"), 10, 64)
		switch {
		case err != nil || length < -1:
			return false, malformed("Redis sent a length that is no number")
		case length < 0: // null
			return true, nil
		case strings.IndexByte("$=!", kind) >= 0:
			return false, r.text(length, n)
		}
		return r.open(kind, length)
	}
	return false, malformed("Redis sent a reply of an unknown type")
}

// text begins a string of the given length, which a line has announced. n is the number of bytes in the last part of
// this line.
func (r *RESP) text(length int64, n int) error {
	if length > r.longest {
		return tooLarge("a value in Redis has " + strconv.FormatInt(length, 10) + " bytes; the longest that is read " +
			"has " + strconv.FormatInt(r.longest, 10))
	}
	if r.left = length + 2; length > freeBytes && !r.strict {
		r.held = n
	}
	return nil
}

// open begins an aggregate with the given number of elements, or of pairs for maps and attributes. It returns true if
// the aggregate is empty and thus complete. For an empty attribute, it returns false, because the described value
// follows.
func (r *RESP) open(kind byte, length int64) (bool, error) {
	n := int(min(length, maxElements+1))
	if kind == '%' || kind == '|' {
		n *= 2
	}
	attribute := kind == '|'
	if attribute {
		r.attributes++
	}
	r.elements += n
	switch {
	case r.elements > maxElements:
		return false, tooLarge("the answer of Redis has more than " + strconv.Itoa(maxElements) + " elements")
	case r.attributes > maxAttributes, len(r.stack) >= maxDepth:
		return false, tooLarge("a reply of Redis is nested too deeply")
	case n == 0:
		return !attribute, nil // the value that the attribute describes follows
	}
	r.stack = append(r.stack, aggregate{n, attribute})
	return false, nil
}

// element handles the end of an element. If the element is the last one of its aggregate, the aggregate ends too, and
// so may the aggregates around it. element returns true if the whole reply has ended.
func (r *RESP) element() bool {
	for len(r.stack) > 0 {
		top := &r.stack[len(r.stack)-1]
		if top.left--; top.left > 0 {
			return false
		}
		attribute := top.attribute
		if r.stack = r.stack[:len(r.stack)-1]; attribute {
			return false // the value that the attribute describes follows
		}
	}
	return true
}

// complete handles the end of a reply. If r.strict is set, the parameter reply has the bytes of the reply, and complete
// checks their form.
func (r *RESP) complete(reply []byte) error {
	address := false
	if waiting := r.requests.waiting; len(waiting) > 0 {
		address = waiting[0].address // the library also accepts a push as the reply
		if r.kind != '>' {
			r.requests.waiting = waiting[1:]
		}
	}
	var err error
	if r.strict {
		err = r.form(reply, address)
	}
	if r.requests.subscribed {
		r.total, r.elements = 0, 0 // messages need no request
	}
	r.within, r.attributes, r.held = false, 0, 0
	return err
}
