package http

import (
	"net/http"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/watches"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/admission"
)

const (
	// countedAnswer is the size in bytes of the smallest answer for which memory is reserved. A smaller answer needs
	// little more memory than the request itself.
	countedAnswer = 16 << 10
	// answerPiece is the number of bytes per write of an answer. admission.Transfer measures the speed of the client
	// after each write.
	answerPiece = 64 << 10
)

// smallBulk and largeBulk limit the total size in bytes of the values in a bulk read. A bulk read starts with
// smallBulk. If the values are larger, it is repeated with largeBulk.
const (
	smallBulk  = 128 << 10
	largeBulk  = 32 << 20
	bulkCopies = 2 // the values, and the encoded answer
)

// held reads a value and reserves memory for the answer. It first reads with a small options.MaxValue, so that the
// store returns only the size of a large value. If the value is large, held waits for memory and then reads again
// without the limit. A waiting request therefore holds no large value. read must pass the options to the store.
func (c *core) held(
	p *reply, r *http.Request, options *api.ReadOptions, read func() (state.Item, error),
) (state.Item, error) {
	if c.answers == nil {
		return read()
	}
	options.MaxValue = api.UnreservedValue
	item, err := read()
	size := max(int64(len(item.Value)), item.Size)
	if err != nil || size < countedAnswer {
		return item, err
	}
	if p.answer.TryAdd(size) && item.Size == 0 {
		return item, nil
	}
	stale := item.Level == state.Stale
	item = state.Item{}
	if !p.answer.Held() {
		if err := p.answer.Add(r.Context(), size); err != nil {
			return item, api.Overloaded(err)
		}
	}
	options.MaxValue = 0
	if item, err = read(); err == nil && stale {
		item.Level = state.Stale // only the first read reports a lost write
	}
	return item, err
}

// bulk reads several keys within the memory budget for answers. It first reads with a small limit. If the values are
// larger, it reads them again with a large limit.
func (c *core) bulk(
	p *reply, r *http.Request, request api.BulkGetRequest, read func(api.BulkGetRequest) (api.Bulk, error),
) (api.Bulk, error) {
	within := func(bound int64) (api.Bulk, error) {
		if err := p.answer.Add(r.Context(), bulkCopies*bound); err != nil {
			return api.Bulk{}, api.Overloaded(err)
		}
		request.MaxBytes = bound
		return read(request)
	}
	out, err := within(smallBulk)
	if state.IsValuesTooLarge(err) {
		p.answer.Release()
		out, err = within(largeBulk)
	}
	return out, err
}

// room reserves memory for an answer of size bytes that has already been encoded. It does nothing if the answer is
// small, or if memory for the answer is already reserved. It returns the errors of admission.Share.AddUsed.
func (p *reply) room(size int) error {
	if size < countedAnswer || p.answer.Held() {
		return nil
	}
	return p.answer.AddUsed(p.ctx, int64(size))
}

// transmit writes a body. It aborts the answer if the client reads slowly while other requests wait for memory that
// this request and its answer have reserved.
func (p *reply) transmit(body []byte) {
	cut := p.cutter()
	answer, request := p.answer.Transfer(cut), p.share.Transfer(cut)
	defer answer.End()
	defer request.End()
	for len(body) > 0 {
		n, err := p.Write(body[:min(len(body), answerPiece)])
		if body = body[n:]; err != nil {
			return // the client closed the connection
		}
		answer.Moved(n)
		request.Moved(n)
		if answer.Cut() || request.Cut() {
			p.broken = true
			return
		}
	}
}

// cutter returns a function that aborts the answer, for use with Share.Transfer. Over HTTP/2, the function resets the
// stream. The reset cannot be sent to a client that reads nothing. Therefore the function closes the connection if it
// is called again more than admission.SlowAfter after its first call.
func (p *reply) cutter() (cut func()) {
	control, conn := http.NewResponseController(p.ResponseWriter), watches.ConnOf(p.ctx)
	var mu sync.Mutex // two budgets may call the function at the same time
	var first time.Time
	return func() {
		_ = control.SetWriteDeadline(time.Now())
		mu.Lock()
		defer mu.Unlock()
		switch now := time.Now(); {
		case first.IsZero():
			first = now
		case conn != nil && now.Sub(first) > admission.SlowAfter:
			stuck := conn
			conn = nil
			go func() { _ = stuck.Close() }() // Close may wait, and the budget is locked
		}
	}
}
