package kv

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/quorate/quorate/raftfsm/command"
)

// Client results are the results of requests with a client id. There may be a million of them, so they are kept only in
// the database. They are numbered in the order in which they were made. They expire in the same order, so the oldest
// one is found by its number, without a search.

// clientFormat is the first byte of the records of both client tables.
const clientFormat = 1

var errClient error = formError("client result of an unknown form")

// clientRow is the record of a client id. The zero row is that of an unknown id.
type clientRow struct {
	number      uint64 // position in the queue
	expireAt    uint64
	fingerprint uint64
	index       uint64
	result      []byte // in the form of appendResult
}

// clientItem is one item of the client queue.
type clientItem struct {
	expireAt uint64
	key      string // of the row in the table of clients
}

// clientOverlay has the changes of the current Apply to two tables: the client results and the client queue. Lookups
// need it, because these changes are not in the database yet.
type clientOverlay struct {
	rows  map[string]clientRow
	queue map[uint64]clientItem
}

func (c *clientOverlay) begin() {
	if c.rows == nil {
		c.rows, c.queue = make(map[string]clientRow), make(map[uint64]clientItem)
	}
}

func (c *clientOverlay) end() {
	if len(c.rows) > keepRows {
		*c = clientOverlay{}
		return
	}
	clear(c.rows)
	clear(c.queue)
}

// writeOnce applies the operations of a request, but only once for each client id. If a result is stored for the client
// id, writeOnce applies nothing. If the stored result belongs to the same operations, writeOnce sets res to it.
// Otherwise it sets the outcome Rejected. A request without a client id is always applied.
func (w *writer) writeOnce(r *command.Request, res *Result) error {
	if r.Client.ID == "" {
		return w.write(r.Ops, res)
	}
	key := string(appendClientKey(w.key[:0], w.meta.tables(), r.Client.Scope, r.Client.ID))
	seen, err := w.client(key)
	if err != nil {
		return err
	}
	content := fingerprint(r.Ops)
	switch {
	case seen.expireAt <= w.meta.clock: // the id is unknown, or its result has expired
		if err := w.write(r.Ops, res); err != nil {
			return err
		}
		return w.rememberClient(key, content, res)
	case seen.fingerprint != content:
		res.Outcome = Rejected
		return nil
	}
	*res, err = parseResult(seen.result, seen.index)
	res.Replayed = true
	return err
}

func (w *writer) rememberClient(key string, content uint64, res *Result) error {
	r := clientRow{
		number: w.meta.clientNext, expireAt: later(w.meta.clock, command.ClientResultLife),
		fingerprint: content, index: res.Index, result: appendResult(nil, res, res.Index),
	}
	w.meta.clientNext++
	w.clients.rows[key], w.clients.queue[r.number] = r, clientItem{expireAt: r.expireAt, key: key}
	w.txn.set([]byte(key), r.append(nil))
	item := binary.BigEndian.AppendUint64([]byte{clientFormat}, r.expireAt)
	w.txn.set(appendNumberKey(nil, w.meta.tables().queue(), r.number), append(item, key...))
	if w.meta.clientNext-w.meta.clientFirst > w.bounds.clients {
		return w.forgetClient()
	}
	return nil
}

// forgetClient removes the oldest item from the queue of client results. It also deletes the client result of that
// item, unless a later request with the same client id has replaced it.
func (w *writer) forgetClient() error {
	number := w.meta.clientFirst
	item, err := w.clientItem(number)
	if err != nil {
		return err
	}
	r, err := w.client(item.key)
	if err != nil {
		return err
	}
	if r.number == number && r.expireAt != 0 {
		w.txn.delete([]byte(item.key))
		w.clients.rows[item.key] = clientRow{}
	}
	w.txn.delete(appendNumberKey(nil, w.meta.tables().queue(), number))
	w.meta.clientFirst++
	return nil
}

// clientDue reports whether the oldest item of the queue has expired.
func (w *writer) clientDue() (bool, error) {
	if w.meta.clientFirst == w.meta.clientNext {
		return false, nil
	}
	item, err := w.clientItem(w.meta.clientFirst)
	return item.expireAt <= w.meta.clock, err
}

func (w *writer) client(key string) (clientRow, error) {
	if r, ok := w.clients.rows[key]; ok {
		return r, nil
	}
	w.key = append(w.key[:0], key...)
	raw, found, err := w.txn.get(w.key)
	if err != nil || !found {
		return clientRow{}, err
	}
	return parseClientRow(raw)
}

func (w *writer) clientItem(number uint64) (clientItem, error) {
	if i, ok := w.clients.queue[number]; ok {
		return i, nil
	}
	w.key = appendNumberKey(w.key[:0], w.meta.tables().queue(), number)
	raw, found, err := w.txn.get(w.key)
	if err != nil {
		return clientItem{}, err
	}
	if !found {
		return clientItem{}, errClient
	}
	return parseClientItem(raw)
}

// append appends the record of r to dst: format(1) number(8) expiry(8) fingerprint(8) index(8) result.
func (r *clientRow) append(dst []byte) []byte {
	dst = append(dst, clientFormat)
	for _, n := range [...]uint64{r.number, r.expireAt, r.fingerprint, r.index} {
		dst = binary.BigEndian.AppendUint64(dst, n)
	}
	return append(dst, r.result...)
}

func parseClientRow(b []byte) (clientRow, error) {
	if len(b) < 1+4*8 || b[0] != clientFormat {
		return clientRow{}, errClient
	}
	var r clientRow
	for i, n := range [...]*uint64{&r.number, &r.expireAt, &r.fingerprint, &r.index} {
		*n = binary.BigEndian.Uint64(b[1+8*i:])
	}
	r.result = slices.Clone(b[1+4*8:])
	return r, nil
}

func parseClientItem(b []byte) (clientItem, error) {
	if len(b) < 1+8 || b[0] != clientFormat {
		return clientItem{}, errClient
	}
	return clientItem{expireAt: binary.BigEndian.Uint64(b[1:]), key: string(b[9:])}, nil
}

// fingerprint returns a hash of the operations of a request. The machine stores it with the result, and refuses a
// different request with the same client id. The hash leaves out operations on TopicStore, because they differ between
// a request and its retry: events get new times and traces. The algorithm must not change, because new hashes are
// compared with stored ones.
func fingerprint(ops []command.Op) uint64 {
	d := xxhash.New()
	var n [8]byte
	number := func(v uint64) {
		binary.BigEndian.PutUint64(n[:], v)
		_, _ = d.Write(n[:]) // a digest does not fail
	}
	text := func(s string) {
		number(uint64(len(s)))
		_, _ = d.WriteString(s)
	}
	for i := range ops {
		o := &ops[i]
		if o.Store == TopicStore {
			continue
		}
		number(uint64(o.Kind)<<8 | uint64(o.Cond))
		number(o.Revision)
		number(o.TTL)
		number(o.ExpireAt)
		text(o.Store)
		text(o.Key)
		text(o.ContentType)
		number(uint64(len(o.Value)))
		_, _ = d.Write(o.Value)
	}
	return d.Sum64()
}
