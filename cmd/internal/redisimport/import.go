package redisimport

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/internal/fault"
)

// Item is one value to be written to the store.
type Item struct {
	Key    string
	Value  []byte        // JSON text, or binary data
	Binary bool          // Value is not JSON
	TTL    time.Duration // remaining TTL in whole seconds; 0 = no expiry
}

// Target is the store that values are written to. Implementations are safe for concurrent use and
// return *fault.Error.
type Target interface {
	// Write saves all items or none. With createOnly it returns fault.Conflict if the store has one
	// of the keys. It returns fault.Invalid if it refuses one of the items.
	Write(ctx context.Context, items []Item, createOnly bool) error
	// Present returns the keys that the store has.
	Present(ctx context.Context, keys []string) (map[string]bool, error)
}

// Import is the configuration of an import. A field is required unless its comment gives a default.
type Import struct {
	Server    Server
	Keys      Keys
	Target    Target
	DryRun    bool  // write nothing
	Overwrite bool  // replace values that the store has
	Batch     int   // maximum number of keys per write
	Bytes     int64 // maximum size of the values of one write, in bytes; a single value may be larger
	MaxValue  int64 // maximum size of a hash value that is read, in bytes
	Workers   int
	Skipped   io.Writer // receives every key that is not copied, as JSON lines; nil = no list
	// waits before attempt 1, 2, ... of a failed write; false = give up
	Pause func(ctx context.Context, attempt int) (again bool)
	// called with a function that returns the report so far; stop is called at the end; nil = no
	// progress
	Progress func(now func() Report) (stop func())
}

// run is the state of a running import.
type run struct {
	Import
	tally  *tally
	ledger ledger
}

// Run copies every key that is state of the application. It returns an error if the import as a
// whole failed; single keys that could not be copied are only in the report. The report is valid
// also after an error. Run can be called again to continue: unless Overwrite is set, it skips keys
// that the store already has.
func (i Import) Run(ctx context.Context) (Report, error) {
	conn, err := i.Server.Open(ctx)
	if err != nil {
		return Report{}, err
	}
	defer conn.Close()
	size, err := conn.Size()
	if err != nil {
		return Report{}, err
	}
	r := &run{Import: i, tally: newTally(size, i.DryRun), ledger: ledger{w: i.Skipped}}
	if i.Progress != nil {
		defer i.Progress(r.tally.now)()
	}
	pages := make(chan []key)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(pages)
		return r.walk(ctx, conn, pages)
	})
	for range i.Workers {
		g.Go(func() error { return r.work(ctx, pages) })
	}
	err = g.Wait()
	report := r.tally.now()
	report.Complete = err == nil
	return report, err
}

// walk scans Redis and sends the keys of the application to pages.
func (r *run) walk(ctx context.Context, conn *Conn, pages chan<- []key) error {
	for cursor := uint64(0); ; {
		next, stored, err := conn.scan(cursor, r.Batch)
		if err != nil {
			return ended(ctx, err)
		}
		page := make([]key, 0, len(stored))
		for _, s := range stored {
			own, why := r.Keys.sort(s)
			if why == "" {
				page = append(page, key{s, own})
			} else if err := r.skip(s, why, ""); err != nil {
				return err
			}
		}
		r.tally.seen(len(stored))
		if len(page) > 0 {
			select {
			case pages <- page:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// ended returns the cause of ctx if ctx has ended, because err is then only its consequence.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (r *run) skip(stored string, why Reason, detail string) error {
	s := Skipped{Key: stored, Reason: why, Detail: detail}
	r.tally.skip(s)
	if err := r.ledger.add(s); err != nil {
		return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "the file of skipped keys cannot be written",
			Err: err}
	}
	return nil
}

// work copies pages over its own connection.
func (r *run) work(ctx context.Context, pages <-chan []key) error {
	conn, err := r.Server.Open(ctx)
	if err != nil {
		return ended(ctx, err)
	}
	defer conn.Close()
	for page := range pages {
		found, err := conn.describe(page)
		if err != nil {
			return ended(ctx, err)
		}
		if found, err = r.sift(found); err != nil {
			return err
		}
		for len(found) > 0 {
			n := r.portion(found)
			if err := r.copy(ctx, conn, found[:n]); err != nil {
				return ended(ctx, err)
			}
			found = found[n:]
		}
	}
	return nil
}

// sift removes keys that are not state or too large, before their values are read.
func (r *run) sift(found []described) ([]described, error) {
	left := found[:0]
	for _, d := range found {
		var err error
		switch {
		case d.kind == typeNone:
			err = r.skip(d.key.stored, Expired, "")
		case d.kind != typeHash && d.kind != typeJSON:
			err = r.skip(d.key.stored, NoState, "it is a "+d.kind)
		case d.kind == typeHash && d.size > r.MaxValue:
			err = r.skip(d.key.stored, TooLarge, fmt.Sprintf("%d bytes; the limit is %d", d.size, r.MaxValue))
		default:
			left = append(left, d)
		}
		if err != nil {
			return nil, err
		}
	}
	return left, nil
}

// portion returns how many of the keys fit into one write. It is at least one.
func (r *run) portion(found []described) int {
	var bytes int64
	for n, d := range found {
		if bytes += d.size; n > 0 && (n == r.Batch || bytes > r.Bytes) {
			return n
		}
	}
	return len(found)
}

// copy reads the values of keys and writes them.
func (r *run) copy(ctx context.Context, conn *Conn, keys []described) error {
	read := time.Now()
	values, err := conn.values(keys)
	if err != nil {
		return err
	}
	b := batch{run: r, stored: map[string]string{}, read: read}
	for i, v := range values {
		if err := b.take(keys[i], v); err != nil {
			return err
		}
	}
	if len(b.items) == 0 {
		return nil
	}
	if r.DryRun {
		return b.pretend(ctx)
	}
	return b.write(ctx)
}

// batch is the items of one write.
type batch struct {
	*run
	items  []Item
	stored map[string]string // the key in Redis by the key of the application
	read   time.Time
}

// take adds a value to the batch, or skips it with a reason.
func (b *batch) take(d described, v value) error {
	switch {
	case v.err != nil:
		return b.skip(d.key.stored, Refused, fault.Text(v.err))
	case v.data == nil && d.kind == typeHash && d.size > 0:
		return b.skip(d.key.stored, Expired, "")
	case v.data == nil:
		return b.skip(d.key.stored, NoState, "it is a "+d.kind+" without the field data")
	case json.Valid(v.data):
		b.add(d, Item{Value: v.data})
	case encrypted(v.data):
		return b.skip(d.key.stored, Encrypted, "Dapr encrypted it and only Dapr can read it")
	default:
		b.add(d, Item{Value: v.data, Binary: true})
	}
	return nil
}

func (b *batch) add(d described, i Item) {
	i.Key = d.key.own
	if d.ttl > 0 { // rounded up, so that nothing expires early
		i.TTL = (d.ttl + time.Second - 1).Truncate(time.Second)
	}
	b.items = append(b.items, i)
	b.stored[i.Key] = d.key.stored
}

// pretend counts what write would copy, for a dry run.
func (b *batch) pretend(ctx context.Context) error {
	if !b.Overwrite {
		if err := b.leaveOut(ctx); err != nil {
			return err
		}
	}
	b.tally.copied(b.items)
	return nil
}

// write saves the items in one request. If the store refuses it because of a conflict, write
// removes the items that the store already has and tries again. If a request is still refused
// because of one item, write writes each item separately.
func (b *batch) write(ctx context.Context) error {
	err := b.try(ctx, b.items)
	if fault.Is(err, fault.Conflict) && len(b.items) > 1 {
		if err = b.leaveOut(ctx); err == nil && len(b.items) > 0 {
			err = b.try(ctx, b.items)
		}
	}
	if !single(err) {
		return err
	}
	items := b.items
	for i := range items {
		if err := b.one(ctx, items[i:i+1], err); err != nil {
			return err
		}
	}
	return nil
}

// single reports whether an error concerns one item rather than the node.
func single(err error) bool { return fault.Is(err, fault.Conflict) || fault.Is(err, fault.Invalid) }

// one writes one item, and records it as skipped if the store or the node refuses it. If the batch had only this
// item, known is the error of the batch and the item is not written again.
func (b *batch) one(ctx context.Context, item []Item, known error) error {
	err := known
	if len(b.items) > 1 {
		err = b.try(ctx, item)
	}
	switch {
	case fault.Is(err, fault.Conflict):
		return b.skip(b.stored[item[0].Key], Exists, "")
	case fault.Is(err, fault.Invalid):
		return b.skip(b.stored[item[0].Key], Refused, fault.Text(err))
	}
	return err
}

// leaveOut removes the items that the store already has.
func (b *batch) leaveOut(ctx context.Context) error {
	keys := make([]string, len(b.items))
	for i := range b.items {
		keys[i] = b.items[i].Key
	}
	var there map[string]bool
	err := b.again(ctx, func() (err error) {
		there, err = b.Target.Present(ctx, keys)
		return err
	})
	if err != nil {
		return err
	}
	var left []Item
	for _, item := range b.items {
		if !there[item.Key] {
			left = append(left, item)
		} else if err := b.skip(b.stored[item.Key], Exists, ""); err != nil {
			return err
		}
	}
	b.items = left
	return nil
}

// try writes items and counts them.
func (b *batch) try(ctx context.Context, items []Item) error {
	err := b.again(ctx, func() error { return b.Target.Write(ctx, items, !b.Overwrite) })
	if err == nil {
		b.tally.copied(items)
	}
	return err
}

// again calls do until its error concerns an item and not the node, or Pause returns false. A failed write may have
// been applied; its retry then conflicts, and the key counts as existing.
func (b *batch) again(ctx context.Context, do func() error) error {
	for attempt := 1; ; attempt++ {
		err := do()
		if err == nil || single(err) || fault.Is(err, fault.Denied) || ctx.Err() != nil || !b.Pause(ctx, attempt) {
			return err
		}
	}
}
