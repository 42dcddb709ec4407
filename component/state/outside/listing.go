package outside

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/component/state"
)

const (
	maxPage = 1000 // keys of a page of a listing

	// A scan keeps keys in memory for the following pages. These constants limit their number, their total size, and
	// the time for which they are kept.
	maxAhead  = 100_000
	aheadSize = 16 << 20 // bytes
	aheadTime = time.Minute
)

// Unordered is a database that can list its keys, but not in order.
type Unordered interface {
	// Scan calls found with the keys that begin with prefix and belong to a listing with the given metadata. It may
	// pass a key several times. The calls of found are not concurrent.
	Scan(ctx context.Context, prefix string, metadata map[string]string, found func(keys []string)) error
	// Describe returns ETag and expiry of keys. An item without an ETag or with an error is not listed.
	Describe(ctx context.Context, keys []string, metadata map[string]string) ([]state.Item, error)
}

// Listing lists the keys of a database page by page, in order. The database cannot sort its keys, so Listing must scan
// all keys even for one page. Therefore Listing keeps keys of a scan in memory for the following pages. A Listing is
// safe for concurrent use.
type Listing struct {
	db Unordered

	mu      sync.Mutex
	scope   string   // prefix and metadata of the listing
	from    string   // keys begins after this key
	keys    []string // sorted; nil = no keys are kept
	more    bool     // the scan found more keys than it kept
	discard *time.Timer
}

// NewListing returns a listing of a database.
func NewListing(db Unordered) *Listing { return &Listing{db: db} }

// Page returns a page of keys. The parameter scope is the part of the metadata that determines which items are listed.
//
// The first page of a listing comes from a new scan. A later page may come from a scan that is up to a minute old. It
// may lack keys that were created after this scan, but it contains no key that was deleted before the call.
func (l *Listing) Page(ctx context.Context, r state.ListRequest, scope string) (state.Page, error) {
	limit := r.Limit
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	page := state.Page{Proof: state.Proof{Level: state.Stale}} // a scan does not read a snapshot
	for {
		keys, more, err := l.following(ctx, r, scope, limit)
		if err != nil {
			return state.Page{}, err
		}
		items, err := l.db.Describe(ctx, keys, r.Metadata)
		if err != nil {
			return state.Page{}, err
		}
		for _, item := range items {
			if item.Err == nil && item.Found() { // the key still exists
				item.Proof = page.Proof
				page.Items = append(page.Items, item)
			}
		}
		page.More = more
		if len(page.Items) > 0 || !more {
			return page, nil
		}
		r.After = keys[len(keys)-1]
	}
}

// Close forgets the keys.
func (l *Listing) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
}

func (l *Listing) forget() {
	if l.discard != nil {
		l.discard.Stop()
	}
	l.keys = nil
}

// following returns up to limit keys after r.After, in order. It uses the keys that an earlier scan has kept in memory,
// or makes a new scan. The second result is true if more keys follow.
func (l *Listing) following(ctx context.Context, r state.ListRequest, scope string, limit int) ([]string, bool, error) {
	scope = r.Prefix + "\x00" + scope
	if keys, more, ok := l.kept(scope, r.After, limit); ok {
		return keys, more, nil
	}
	keys, more, err := l.scan(ctx, r)
	if err != nil || len(keys) <= limit {
		return keys, more, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
	l.scope, l.from, l.keys, l.more = scope, r.After, keys, more
	l.discard = time.AfterFunc(aheadTime, l.Close)
	return slices.Clone(keys[:limit]), true, nil
}

// kept returns, in order, up to limit keys after lastKey that are in memory. hasMore is true if more keys follow. ok is
// false if the keys after lastKey are not in memory.
func (l *Listing) kept(scope, lastKey string, limit int) (keys []string, hasMore, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if scope != l.scope || lastKey == "" || lastKey < l.from || len(l.keys) == 0 || lastKey >= l.keys[len(l.keys)-1] {
		return nil, false, false
	}
	at, found := slices.BinarySearch(l.keys, lastKey)
	if found {
		at++
	}
	rest := l.keys[at:]
	if len(rest) <= limit {
		return slices.Clone(rest), l.more, true
	}
	return slices.Clone(rest[:limit]), true, true
}

// scan reads all keys of the database and returns the keys after r.After, in order. If there are more keys than the
// bounds allow (see maxAhead), scan omits the greatest keys and the second result is true.
func (l *Listing) scan(ctx context.Context, r state.ListRequest) ([]string, bool, error) {
	var s smallest
	err := l.db.Scan(ctx, r.Prefix, r.Metadata, func(found []string) {
		for _, key := range found {
			if strings.HasPrefix(key, r.Prefix) && (key > r.After || r.After == "") {
				s.add(key)
			}
		}
	})
	s.trim()
	return s.keys, s.more, err
}

// smallest collects the smallest of many keys.
type smallest struct {
	keys []string
	size int
	more bool // greater keys were dropped
}

func (s *smallest) add(key string) {
	s.keys = append(s.keys, key)
	if s.size += len(key); len(s.keys) > 2*maxAhead || s.size > 2*aheadSize && len(s.keys) > 2*maxPage {
		s.trim()
	}
}

// trim sorts the keys and removes duplicates. It drops the greatest keys if there are more than the bounds allow.
func (s *smallest) trim() {
	slices.Sort(s.keys)
	s.keys = slices.Compact(s.keys)
	s.size = 0
	for i, key := range s.keys {
		if s.size += len(key); i >= maxAhead || s.size > aheadSize && i >= maxPage {
			s.keys, s.more, s.size = slices.Delete(s.keys, i, len(s.keys)), true, s.size-len(key)
			return
		}
	}
}
