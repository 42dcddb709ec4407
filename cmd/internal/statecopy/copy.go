package statecopy

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

const op = "statecopy.Run"

// Key is a key of the application, or a key of its actor state in the form type||id||key.
type Key struct {
	Name string
	ETag string
	Err  string // why the store cannot read the ETag; empty = it can
}

// Item is one value to be written to a store.
type Item struct {
	Key     string
	Value   []byte    // JSON text, or binary data
	Binary  bool      // Value is not JSON
	Expires time.Time // a whole second; zero = never
}

// Source is a store that is read. Implementations must be safe for concurrent use. Their errors must be of the type
// *fault.Error.
type Source interface {
	// Page returns at most limit keys that begin with prefix. If prefix is empty, they include actor state. The
	// parameter token is the result next of the previous page, or empty for the first page. If there are no more
	// pages, next is empty.
	Page(ctx context.Context, prefix, token string, limit int) (keys []Key, next string, err error)
	// Read returns the values of keys. The result has no entry for an absent key.
	Read(ctx context.Context, keys []string) (map[string]Value, error)
}

// Target is a store that is written.
type Target interface {
	Source
	// Write saves all items or none. It returns fault.Invalid or fault.TooLarge if it refuses one of the items. If
	// createOnly is true, it returns fault.Conflict if the store already has one of the keys.
	Write(ctx context.Context, items []Item, createOnly bool) error
	// Delete deletes a key. It returns fault.Conflict if the key has another ETag or does not exist, and fault.Invalid
	// or fault.TooLarge if it refuses the key.
	Delete(ctx context.Context, k Key) error
}

// Copy is the configuration of a copy between two stores. A field is required unless its comment gives a default.
type Copy struct {
	App, FromName, ToName string // names for the report
	From                  Source
	To                    Target
	Prefix                string    // only keys that begin with this; empty = all keys, and actor state
	DryRun                bool      // write nothing
	Verify                bool      // write nothing, and report how the stores differ
	Overwrite             bool      // replace the values in To that differ
	Delete                bool      // delete the keys that only To has, after all keys of From are copied
	Batch                 int       // maximum number of keys per read and write
	Bytes                 int       // maximum size of the values of one write; a single value may be larger
	Workers               int       // concurrent batches
	Rate                  int       // most keys per second; 0 = no limit
	Skipped               io.Writer // receives every problem, as JSON lines; nil = no list
	// Pause waits before a failed request is repeated. The parameter attempt is the number of the failed attempt, from
	// 1, and since is the time since the first attempt began. If again is false, the request is not repeated.
	Pause func(ctx context.Context, attempt int, since time.Duration) (again bool)
	// Progress shows the progress until stop is called. The function now returns the current report. nil = no progress
	// is shown.
	Progress func(now func() Report) (stop func())
}

// run is the state of a running copy.
type run struct {
	Copy
	tally tally
}

// pageSize is the number of keys that one request of a listing returns at most.
const pageSize = 1000

// Run copies the state of the application. If c.Verify is true, it only compares the two stores. The report counts the
// keys that could not be copied. If the whole copy fails, Run returns an error and a report of the copy so far. It can
// then be called again, and skips keys with the same value in both stores.
func (c Copy) Run(ctx context.Context) (Report, error) {
	r := &run{Copy: c, tally: tally{ledger: c.Skipped, report: Report{App: c.App, From: c.FromName, To: c.ToName,
		Verified: c.Verify, DryRun: c.DryRun, Examples: []Problem{}}}}
	if c.Progress != nil {
		defer c.Progress(r.tally.now)()
	}
	err := r.all(ctx, c.From, func(ctx context.Context, page []Key) error {
		r.tally.seen(page)
		return r.some(ctx, names(page))
	})
	if err == nil && (c.Verify || c.Delete) {
		err = r.all(ctx, c.To, r.extras)
	}
	report := r.tally.now()
	report.Completed = err == nil
	return report, err
}

// all lists a store and calls f with each batch of keys. Several goroutines call f concurrently.
func (r *run) all(ctx context.Context, s Source, f func(context.Context, []Key) error) error {
	batches := make(chan []Key)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(batches)
		return r.walk(ctx, s, batches)
	})
	for range r.Workers {
		g.Go(func() error {
			for batch := range batches {
				if err := f(ctx, batch); err != nil {
					return ended(ctx, err)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// walk sends all keys of a store to the channel batches, at most r.Rate keys per second on average. After a delay, it
// sends at most the keys of one second at once to catch up.
func (r *run) walk(ctx context.Context, s Source, batches chan<- []Key) error {
	token, due := "", time.Now() // due is when the next batch may be sent
	for {
		var page []Key
		var next string
		err := r.again(ctx, func() (err error) {
			page, next, err = s.Page(ctx, r.Prefix, token, pageSize)
			return err
		})
		if err != nil {
			return ended(ctx, err)
		}
		for batch := range slices.Chunk(page, r.Batch) {
			select {
			case batches <- batch:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if r.Rate > 0 {
				if earliest := time.Now().Add(-time.Second); due.Before(earliest) {
					due = earliest
				}
				due = due.Add(time.Duration(len(batch)) * time.Second / time.Duration(r.Rate))
				if wait := time.Until(due); wait > 0 && !rest.Pause(ctx, wait) {
					return context.Cause(ctx)
				}
			}
		}
		if token = next; token == "" {
			return nil
		}
	}
}

// ended returns the cause of ctx if ctx has ended, and otherwise err. The end of ctx makes other operations fail too,
// so the cause explains more than err.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func names(page []Key) []string {
	out := make([]string, len(page))
	for i := range page {
		out[i] = page[i].Name
	}
	return out
}

// again repeats call until it succeeds, until Pause returns false, or until ctx ends. It returns at once if the error
// concerns only one item (see single) or has the code fault.Denied.
//
// If the response of a write is lost, the write may have been applied. If the write must not overwrite keys, its
// repetition then fails with fault.Conflict.
func (r *run) again(ctx context.Context, call func() error) error {
	begun := time.Now()
	for attempt := 1; ; attempt++ {
		err := call()
		if err == nil || single(err) || fault.Is(err, fault.Denied) || ctx.Err() != nil ||
			!r.Pause(ctx, attempt, time.Since(begun)) {
			return err
		}
	}
}

// single reports whether an error concerns one item rather than the store.
func single(err error) bool {
	return fault.Is(err, fault.Conflict) || fault.Is(err, fault.Invalid) || fault.Is(err, fault.TooLarge)
}

func (r *run) read(ctx context.Context, s Source, keys []string) (out map[string]Value, err error) {
	err = r.again(ctx, func() error {
		out, err = s.Read(ctx, keys)
		return err
	})
	return out, err
}

// extras handles the keys of a batch that only the target store has. It deletes them if r.Delete is true, and otherwise
// reports them. It does not delete a key that was written after it was listed.
func (r *run) extras(ctx context.Context, batch []Key) error {
	source, err := r.read(ctx, r.From, names(batch))
	if err != nil {
		return err
	}
	for _, k := range batch {
		if _, there := source[k.Name]; there {
			continue
		}
		if err := r.extra(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) extra(ctx context.Context, k Key) error {
	extra := func(r *Report) *int64 { return &r.Extra }
	var err error
	switch {
	case !r.Delete:
		return r.tally.problem(extra, k.Name, "only in "+r.ToName)
	case k.Err != "": // a delete without an ETag could delete a newer value
		return r.tally.problem(extra, k.Name, k.Err)
	case !r.DryRun:
		err = r.delete(ctx, k)
	}
	switch {
	case err == nil:
		r.tally.count(func(r *Report) { r.Deleted++ })
	case fault.Is(err, fault.Conflict):
		return r.tally.problem(extra, k.Name, "written in "+r.ToName+" during the copy")
	case single(err):
		return r.tally.problem(extra, k.Name, fault.Text(err))
	default:
		return err
	}
	return nil
}

// delete deletes a key in the target store. If it gets a conflict and the key no longer exists, it returns nil: an
// earlier attempt may have deleted the key although its response was lost.
func (r *run) delete(ctx context.Context, k Key) error {
	conflict := r.again(ctx, func() error { return r.To.Delete(ctx, k) })
	if !fault.Is(conflict, fault.Conflict) {
		return conflict
	}
	target, err := r.read(ctx, r.To, []string{k.Name})
	if err != nil {
		return err
	}
	if _, there := target[k.Name]; there {
		return conflict
	}
	return nil
}

// some is called with each batch of keys. It copies the values of these keys, or only compares them if r.Verify is
// true.
func (r *run) some(ctx context.Context, keys []string) error {
	keys, err := r.valid(keys)
	if err != nil || len(keys) == 0 {
		return err
	}
	source, err := r.read(ctx, r.From, keys)
	if err != nil {
		return err
	}
	target, err := r.read(ctx, r.To, keys)
	if err != nil {
		return err
	}
	var fresh, changed []Item
	for _, key := range keys {
		s, there := source[key]
		t, had := target[key]
		unreadable := func(store string, why error) error {
			return r.tally.problem(func(r *Report) *int64 { return &r.Unreadable }, key,
				"cannot be read in "+store+": "+fault.Text(why))
		}
		var err error
		switch {
		case !there:
			r.tally.count(func(r *Report) { r.Vanished++ })
		case s.Err != nil:
			err = unreadable(r.FromName, s.Err)
		case t.Err != nil:
			err = unreadable(r.ToName, t.Err)
		case had && same(s, t):
			r.tally.count(func(r *Report) { r.Same++ })
		case s.encrypted():
			err = unreadable(r.FromName, fault.New(fault.Invalid, op, "Dapr encrypted it, and only Dapr can read it"))
		case r.Verify && !had:
			err = r.tally.problem(func(r *Report) *int64 { return &r.Missing }, key, "missing in "+r.ToName)
		case had && !r.Overwrite:
			err = r.tally.problem(func(r *Report) *int64 { return &r.Differ }, key, "another value in "+r.ToName)
		case had:
			changed = append(changed, s.item(key))
		default:
			fresh = append(fresh, s.item(key))
		}
		if err != nil {
			return err
		}
	}
	if err := r.write(ctx, fresh, true); err != nil {
		return err
	}
	return r.write(ctx, changed, false)
}

// valid returns the keys that a node accepts, and reports the other keys as refused. This check is necessary because
// one invalid key makes a node refuse a read of many keys. Also, a key that is not valid UTF-8 would become another key
// in JSON.
func (r *run) valid(keys []string) ([]string, error) {
	out := make([]string, 0, len(keys))
	for _, key := range keys {
		check := state.ValidateKey
		if strings.Contains(key, state.Separator) {
			check = state.ValidateActorKey
		}
		why := check(key)
		if why == nil {
			out = append(out, key)
			continue
		}
		if err := r.refused(key, why); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (r *run) refused(key string, why error) error {
	return r.tally.problem(func(r *Report) *int64 { return &r.Refused }, key, fault.Text(why))
}

// write writes items in several requests. If createOnly is true, it does not overwrite existing keys.
func (r *run) write(ctx context.Context, items []Item, createOnly bool) error {
	for len(items) > 0 {
		n, size := 0, 0
		for n < len(items) && (n == 0 || size+len(items[n].Value) <= r.Bytes) {
			size += len(items[n].Value)
			n++
		}
		if err := r.together(ctx, items[:n], createOnly); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

// together writes items in one request. If one of them is refused, it writes them one by one. If createOnly is true,
// it does not overwrite existing keys.
func (r *run) together(ctx context.Context, items []Item, createOnly bool) error {
	var err error
	if !r.DryRun {
		err = r.again(ctx, func() error { return r.To.Write(ctx, items, createOnly) })
	}
	switch {
	case err == nil:
		r.tally.copied(items)
		return nil
	case !single(err):
		return err
	case len(items) > 1:
		for i := range items {
			if err := r.together(ctx, items[i:i+1], createOnly); err != nil {
				return err
			}
		}
		return nil
	case fault.Is(err, fault.Conflict):
		return r.conflict(ctx, items[0].Key)
	}
	return r.refused(items[0].Key, err)
}

// conflict handles a key that was created in the target store during the copy. If both stores now have the same value,
// the key counts as equal, because the copy itself may have written it in an attempt whose answer was lost. Otherwise
// conflict reports the key as different.
func (r *run) conflict(ctx context.Context, key string) error {
	both := [2]map[string]Value{}
	for i, s := range []Source{r.From, r.To} {
		var err error
		if both[i], err = r.read(ctx, s, []string{key}); err != nil {
			return err
		}
	}
	if t, had := both[1][key]; had && t.Err == nil && same(both[0][key], t) {
		r.tally.count(func(r *Report) { r.Same++ })
		return nil
	}
	return r.tally.problem(func(r *Report) *int64 { return &r.Differ }, key,
		"written in "+r.ToName+" during the copy")
}
