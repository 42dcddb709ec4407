// Package records implements a configuration store on top of a state store that reports changes. The component type
// configuration.raft uses it with the replicated store, and configuration.in-memory uses it with a store in memory.
//
// The package owns the encoding of items; the state store holds the data. All items have the same key prefix, so they
// are in the same Raft group, and a write of several items is atomic. While there are subscriptions, one goroutine
// watches the items for all of them. Close waits until this goroutine has ended.
package records

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// prefix is the prefix of the stored key of every item. No application has keys with this prefix, because an
// application id cannot begin with "$".
const prefix = "$configuration" + state.Separator

// bulkSize is how many items are read at once. It is limited because the answer of a server is at most 32 MiB.
const bulkSize = 64

// Backing is the state store that contains the items. Its revisions must be numbers. It must deliver changes in the
// order of their revisions.
type Backing interface {
	state.Store
	state.Transactor
	state.BulkGetter
	state.Lister
	state.Watcher
}

// Options configure a Store. Backing and Logger are required.
type Options struct {
	Backing      Backing
	MaxValueSize int64 // bytes of a value; 0 = configuration.DefaultMaxValueSize
	MaxItems     int   // 0 = configuration.MaxItems
	Logger       *slog.Logger
}

// Store implements configuration.Store and configuration.Writer. It is safe for concurrent use.
type Store struct {
	options Options
	backing Backing

	running sync.WaitGroup // counts running mirrors

	mu     sync.Mutex
	mirror *mirror // nil without subscriptions
	closed bool
}

var (
	_ configuration.Store  = (*Store)(nil)
	_ configuration.Writer = (*Store)(nil)
)

// New returns a store. It does nothing before the first call.
func New(o Options) *Store {
	o.MaxValueSize = cmp.Or(o.MaxValueSize, configuration.DefaultMaxValueSize)
	o.MaxItems = cmp.Or(o.MaxItems, configuration.MaxItems)
	return &Store{options: o, backing: o.Backing}
}

// Close implements configuration.Store. It also closes the backing store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	m := s.mirror
	s.mirror = nil
	s.mu.Unlock()
	if m != nil {
		m.stop(fault.New(fault.Unavailable, "records.Next", "the configuration store is closed"))
	}
	s.running.Wait()
	return s.backing.Close()
}

// record is the value of a stored item.
type record struct {
	Value    string            `json:"value"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// itemOf returns the item in a stored value. It returns fault.Corrupt if the value cannot be decoded.
func itemOf(stored string, value []byte, version string) (configuration.Item, error) {
	key := strings.TrimPrefix(stored, prefix)
	var r record
	if err := json.Unmarshal(value, &r); err != nil {
		return configuration.Item{}, &fault.Error{Code: fault.Corrupt, Op: "records.Get", Key: key, Err: err,
			Msg: "the record of " + strconv.Quote(key) + " cannot be read"}
	}
	return configuration.Item{Key: key, Value: r.Value, Version: version, Metadata: r.Metadata}, nil
}

// Get implements configuration.Store.
func (s *Store) Get(ctx context.Context, r configuration.GetRequest) (configuration.Found, error) {
	o := state.ReadOptions{Session: r.Session, Consistency: state.Eventual}
	if r.Strong {
		o.Consistency = state.Strong
	}
	if !r.Strong || len(r.Keys) > 0 && len(r.Keys) <= bulkSize {
		return s.read(ctx, r, o) // a read of one part already returns a consistent state
	}
	last, err := s.read(ctx, r, o)
	for range snapshotReads {
		if err != nil {
			return configuration.Found{}, err
		}
		before := last
		o.Session = before.Session
		if last, err = s.read(ctx, r, o); err == nil && sameVersions(before.Items, last.Items) {
			return last, nil
		}
	}
	return configuration.Found{}, &fault.Error{Code: fault.Overloaded, Op: "records.Get",
		Msg:  "the items change faster than they can be read as one state",
		Hint: "read fewer keys, or read without metadata.consistency=strong"}
}

// snapshotReads is the maximum number of times that Get repeats a strong read of many items. Get repeats the read until
// two successive attempts return the same versions.
const snapshotReads = 10

// sameVersions reports whether two successive reads returned the same items in the same versions. If so, no item
// changed between the reads, because the store never uses a version twice.
func sameVersions(a, b []configuration.Item) bool {
	return slices.EqualFunc(a, b, func(x, y configuration.Item) bool {
		return x.Key == y.Key && x.Version == y.Version
	})
}

// read reads the items with the given keys, or all items if there are no keys. It reads up to bulkSize items at a time.
func (s *Store) read(ctx context.Context, r configuration.GetRequest, o state.ReadOptions) (configuration.Found,
	error) {
	keys, session, err := r.Keys, o.Session, error(nil)
	if len(keys) == 0 {
		if keys, session, err = s.list(ctx, o); err != nil {
			return configuration.Found{}, err
		}
	}
	out := configuration.Found{Session: session}
	for batch := range slices.Chunk(distinct(keys), bulkSize) {
		o.Session = out.Session // later parts are no older than earlier ones
		stored := make([]string, len(batch))
		for i, k := range batch {
			stored[i] = prefix + k
		}
		items, err := s.backing.BulkGet(ctx, state.BulkGetRequest{Keys: stored, ReadOptions: o})
		if err != nil {
			return configuration.Found{}, err
		}
		for i := range items {
			out.Session = cmp.Or(items[i].Session, out.Session)
			if items[i].Err != nil {
				return configuration.Found{}, items[i].Err
			}
			if !items[i].Found() {
				continue
			}
			item, err := itemOf(items[i].Key, items[i].Value, items[i].ETag)
			if err != nil {
				return configuration.Found{}, err
			}
			out.Items = append(out.Items, item)
		}
	}
	return out, nil
}

// distinct returns the keys sorted, without duplicates.
func distinct(keys []string) []string {
	keys = slices.Clone(keys)
	slices.Sort(keys)
	return slices.Compact(keys)
}

// list returns the keys of all items, and the session token after the read.
func (s *Store) list(ctx context.Context, o state.ReadOptions) (keys []string, session string, err error) {
	after := ""
	for {
		page, err := s.backing.List(ctx, state.ListRequest{Prefix: prefix, After: after, ReadOptions: o})
		if err != nil {
			return nil, "", err
		}
		for i := range page.Items {
			after = page.Items[i].Key
			keys = append(keys, strings.TrimPrefix(after, prefix))
		}
		o.Session = cmp.Or(page.Session, o.Session)
		if !page.More || len(page.Items) == 0 {
			return keys, o.Session, nil
		}
	}
}

// Write implements configuration.Writer.
func (s *Store) Write(ctx context.Context, r configuration.WriteRequest) (configuration.Written, error) {
	if err := configuration.CheckWrite(r.Changes, s.options.MaxValueSize); err != nil {
		return configuration.Written{}, err
	}
	if len(r.Changes) == 0 {
		return configuration.Written{Session: r.Session}, nil
	}
	if err := s.room(ctx, r.Changes); err != nil {
		return configuration.Written{}, err
	}
	operations := make([]state.Operation, len(r.Changes))
	for i := range r.Changes {
		var err error
		if operations[i], err = operation(&r.Changes[i]); err != nil {
			return configuration.Written{}, err
		}
	}
	w, err := s.backing.Transact(ctx, state.TransactRequest{Operations: operations, Session: r.Session})
	if fault.Is(err, fault.Conflict) {
		key := strings.TrimPrefix(fault.KeyOf(err), prefix)
		return configuration.Written{}, &fault.Error{Code: fault.Conflict, Op: "records.Write", Key: key, Err: nil,
			Msg:  "the version given for " + strconv.Quote(key) + " is not the current one; nothing was written",
			Hint: "read the item again"}
	}
	return configuration.Written{Versions: w.ETags, Session: w.Session}, err
}

func operation(c *configuration.Change) (state.Operation, error) {
	op := state.Operation{Write: state.Write{Key: prefix + c.Key, ETag: c.Version}}
	if c.Delete {
		op.Kind = state.Remove
		return op, nil
	}
	if c.Version == configuration.VersionAbsent {
		op.ETag, op.Concurrency = "", state.FirstWrite
	}
	var err error
	op.Value, err = json.Marshal(record{c.Value, c.Metadata})
	return op, err
}

// room returns fault.TooLarge if the new items in a write would make the store larger than Options.MaxItems. It does
// not subtract the items that the same write deletes. Concurrent writes may together exceed the limit.
func (s *Store) room(ctx context.Context, changes []configuration.Change) error {
	var keys []string
	for i := range changes {
		if !changes[i].Delete {
			keys = append(keys, changes[i].Key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	found, err := s.Get(ctx, configuration.GetRequest{Keys: keys})
	if err != nil || len(found.Items) == len(keys) {
		return err
	}
	all, _, err := s.list(ctx, state.ReadOptions{Consistency: state.Eventual})
	if err != nil {
		return err
	}
	if n := len(all) + len(keys) - len(found.Items); n > s.options.MaxItems {
		return &fault.Error{Code: fault.TooLarge, Op: "records.Write",
			Msg: "the store would have " + strconv.Itoa(n) + " items; the limit is " +
				strconv.Itoa(s.options.MaxItems),
			Hint: "delete items, or keep data in a state store"}
	}
	return nil
}

// ended reports whether err means that the watch cannot be resumed at its last position.
func ended(err error) bool {
	var end *state.WatchEnd
	if errors.As(err, &end) {
		return end.Reason == state.WatchCompacted || end.Reason == state.WatchRestored
	}
	return fault.Is(err, fault.Invalid) // the position belongs to another cluster
}
