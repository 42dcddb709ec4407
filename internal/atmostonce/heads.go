package atmostonce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
)

// The default limits of the head of an answer. Informational (1xx) answers to the same request count too.
const (
	DefaultMaxHead   = 64 << 10 // bytes
	DefaultMaxFields = 1000     // lines, and names in the headers Connection and Trailer
)

// The memory that a head takes from the budget. A head of up to freeHead bytes takes none.
const (
	fieldCost = 256 // bytes for each field, in addition to its text
	freeHead  = 16 << 10
	headStep  = 32 << 10 // bytes that are acquired at a time
)

// Memory is a budget for the heads of answers. *admission.Budget implements it.
type Memory interface {
	// Acquire takes bytes from the budget, or returns an error.
	Acquire(ctx context.Context, bytes int64) error
	// Release returns the bytes of one call of Acquire to the budget.
	Release(bytes int64)
}

// Limits limit the number of fields in the head of an answer, and the memory for heads. The size of a head in bytes is
// limited by http.Transport.MaxResponseHeaderBytes instead. The zero value has the default number of fields and no
// budget.
type Limits struct {
	Fields int    // 0 = DefaultMaxFields
	Memory Memory // nil = none
}

func (l Limits) fields() int {
	if l.Fields > 0 {
		return l.Fields
	}
	return DefaultMaxFields
}

// BadAnswer is the error of an answer that was refused. The server may have executed the request.
type BadAnswer struct{ Reason string }

// Error returns the reason.
func (e *BadAnswer) Error() string { return e.Reason }

func bad(format string, a ...any) error { return &BadAnswer{fmt.Sprintf(format, a...)} }

func tooManyFields(limit int) error { return bad("the answer has more than %d header fields", limit) }

func tooLong(limit int64) error {
	return bad("the headers of the answer have %d bytes or more", limit)
}

// errOver is the error of a request that ended while its answer arrived.
var errOver = errors.New("the request has ended")

// heads checks the heads of the answers to one HTTP/1 request while they arrive, before net/http parses and stores
// them. It refuses a head that exceeds the limits, and acquires memory for a large head. It also records the header
// Connection, which net/http removes if it contains close. A reader and a writer of the connection may use the same
// heads concurrently.
type heads struct {
	ctx      context.Context //nolint:containedctx // of the request
	limits   Limits
	maxBytes int64

	mu     sync.Mutex // guards what follows
	size   int64      // bytes of all heads so far
	fields int
	held   int // steps of headStep bytes that were acquired
	over   bool
	err    error

	part    []byte // a line that has not ended
	current head
	begun   bool // the status line of current has arrived
	last    bool // current is not informational
	list    bool // the previous line belongs to the header Connection or Trailer, which the next line may continue
	done    bool // the last head has ended
	ended   []head
	space   [1]head // for ended, without an allocation
}

// head is what heads records about one head.
type head struct {
	connection []string // the values of the header Connection
	own        bool     // the next line may continue the header Connection
	length     bool     // there is a Content-Length
	coding     bool     // there is a Transfer-Encoding
}

func (h *heads) begin(ctx context.Context, l Limits, maxBytes int64) {
	h.ctx, h.limits, h.maxBytes = ctx, l, maxBytes
	h.ended = h.space[:0]
}

// take checks bytes that have been received. It ignores bytes after the last head.
func (h *heads) take(p []byte) error {
	missing, err := h.scan(p)
	for ; missing > 0 && err == nil; missing-- {
		err = h.acquire()
	}
	return err
}

// scan checks the received bytes p. It returns how many more steps of memory the heads need. A step has headStep bytes.
func (h *heads) scan(p []byte) (missing int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(p) > 0 && !h.done && h.err == nil {
		line, rest, whole := bytes.Cut(p, []byte{'\n'})
		h.size += int64(len(p) - len(rest))
		p = rest
		if h.size >= h.maxBytes { // http.Transport stops reading here, too
			h.err = tooLong(h.maxBytes)
			break
		}
		if len(h.part) > 0 || !whole {
			h.part = append(h.part, line...)
			line = h.part
		}
		if whole {
			h.lineLocked(bytes.TrimSuffix(line, []byte{'\r'}))
			h.part = h.part[:0]
		}
	}
	cost := h.size + fieldCost*int64(h.fields) - freeHead
	if h.limits.Memory == nil || cost <= 0 {
		return 0, h.err
	}
	return int((cost+headStep-1)/headStep) - h.held, h.err
}

// lineLocked checks a line of a head. It splits a head into lines and fields exactly as net/http does.
func (h *heads) lineLocked(line []byte) {
	c := &h.current
	switch {
	case !h.begun:
		h.begun, h.last = true, !isInformational(line)
		h.fields++
	case len(line) == 0:
		h.ended, h.done = append(h.ended, *c), h.last
		*c, h.begun, h.list = head{}, false, false
	case line[0] == ' ' || line[0] == '\t':
		h.fields++
		if h.list {
			h.fields += bytes.Count(line, []byte{','})
		}
		if c.own {
			c.connection[len(c.connection)-1] += string(line)
		}
	default:
		h.fields++
		name, value, _ := bytes.Cut(line, []byte{':'})
		h.list, c.own = false, false
		switch {
		case equal(name, "Connection"):
			c.connection, c.own, h.list = append(c.connection, string(bytes.TrimSpace(value))), true, true
		case equal(name, "Trailer"):
			h.list = true
		case equal(name, "Content-Length"):
			c.length = true
		case equal(name, "Transfer-Encoding"):
			c.coding = true
		}
		if h.list {
			h.fields += bytes.Count(value, []byte{','})
		}
	}
	if limit := h.limits.fields(); h.fields > limit {
		h.err = tooManyFields(limit)
	}
}

func equal(name []byte, known string) bool {
	return len(name) == len(known) && bytes.EqualFold(name, []byte(known))
}

// isInformational reports whether net/http reads this status line as the start of an informational (1xx) answer, after
// which a final answer follows. Status 101 is not informational in this sense.
func isInformational(line []byte) bool {
	_, status, _ := bytes.Cut(line, []byte{' '})
	text, _, _ := bytes.Cut(bytes.TrimLeft(status, " "), []byte{' '})
	code, err := strconv.Atoi(string(text))
	return err == nil && len(text) == 3 && code/100 == 1 && code != http.StatusSwitchingProtocols
}

// acquire acquires headStep bytes of memory for the heads.
func (h *heads) acquire() error {
	err := h.limits.Memory.Acquire(h.ctx, headStep)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil:
		h.err = err
	case h.over:
		h.limits.Memory.Release(headStep) // release was called before
		h.err = errOver
	default:
		h.held++
	}
	return h.err
}

// next removes and returns the oldest record of a complete head. If there is no record, the server has answered before
// the request was sent, and next returns an error.
func (h *heads) next() (head, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ended) == 0 {
		return head{}, bad("the answer came before its request")
	}
	first := h.ended[0]
	h.ended = h.ended[1:]
	return first, nil
}

// failure returns why the heads were refused, or nil.
func (h *heads) failure() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// release returns the memory to the budget. It may be called several times.
func (h *heads) release() {
	if h == nil {
		return
	}
	h.mu.Lock()
	held := h.held
	h.held, h.over = 0, true
	h.mu.Unlock()
	for range held {
		h.limits.Memory.Release(headStep)
	}
}

// Admit checks the number of header fields and trailers of an answer that was not checked on arrival, for example over
// HTTP/2 or gRPC. For a large head, Admit acquires memory from l.Memory. The caller must return it with release, which
// may be called several times.
//
// The error is a *BadAnswer if there are too many fields, or an error of l.Memory.
func (l Limits) Admit(ctx context.Context, parts ...map[string][]string) (release func(), err error) {
	fields, size := 0, 0
	for _, part := range parts {
		n, bytes := measure(part)
		fields, size = fields+n, size+bytes
	}
	if limit := l.fields(); fields > limit {
		return nil, tooManyFields(limit)
	}
	cost := int64(size + fieldCost*fields)
	if l.Memory == nil || cost <= freeHead {
		return func() {}, nil
	}
	if err := l.Memory.Acquire(ctx, cost); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { l.Memory.Release(cost) }), nil
}

// measure returns the number of header fields in part, and the number of bytes of their names and values. A field
// without a value counts too: an announced trailer has no value at first.
func measure(part map[string][]string) (fields, size int) {
	for name, values := range part {
		fields += max(len(values), 1)
		size += len(name)
		for _, v := range values {
			size += len(v)
		}
	}
	return fields, size
}
