package redis

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/btree"
	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Get implements state.Store.
func (s *Store) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	items, err := s.items(ctx, "redis.Get", []string{r.Key})
	if err != nil {
		return state.Item{}, err
	}
	return items[0], items[0].Err
}

// BulkGet implements state.BulkGetter. Each item is consistent in itself, but different items may be read at
// different times.
func (s *Store) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	const op, portion = "redis.BulkGet", 256 // keys per round trip
	if err := given(ctx, op); err != nil {
		return nil, err
	}
	out := make([]state.Item, 0, len(r.Keys))
	size := int64(0)
	for keys := range slices.Chunk(r.Keys, portion) {
		items, err := s.items(ctx, op, keys)
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			if size += int64(len(item.Value)); r.MaxBytes > 0 && size > r.MaxBytes {
				return nil, state.ValuesTooLarge(op, r.MaxBytes)
			}
		}
		out = append(out, items...)
	}
	return out, nil
}

// reading is the commands that read one key.
type reading struct {
	at     int // position of the key
	fields *goredis.SliceCmd
	left   *goredis.DurationCmd
	again  *goredis.StringCmd
}

// items reads keys in one round trip. Several commands read one key. If the key is written between them, its version
// has changed, and items reads the key again.
func (s *Store) items(ctx context.Context, op string, keys []string) ([]state.Item, error) {
	const rounds = 100
	if err := given(ctx, op); err != nil {
		return nil, err
	}
	out := make([]state.Item, len(keys))
	pending := make([]int, len(keys))
	for i := range keys {
		pending[i] = i
	}
	for range rounds {
		var changed []int
		pipe := s.client.Pipeline()
		readings := make([]reading, len(pending))
		for i, at := range pending {
			name := s.name(keys[at])
			readings[i] = reading{at: at, fields: pipe.HMGet(ctx, name, fieldData, fieldVersion, fieldTag),
				left: pipe.PTTL(ctx, name), again: pipe.HGet(ctx, name, fieldVersion)}
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
		for _, r := range readings {
			key := keys[r.at]
			item, same, err := s.item(key, r)
			switch {
			case fault.Is(err, fault.Invalid):
				item = state.Item{Key: key, Err: err, Proof: s.proof()}
			case err != nil:
				return nil, s.failed(op, key, err, false)
			case !same:
				changed = append(changed, r.at)
				continue
			}
			out[r.at] = item
		}
		if pending = changed; len(pending) == 0 {
			return out, nil
		}
	}
	return nil, &fault.Error{Code: fault.Unavailable, Op: op, Key: keys[pending[0]],
		Msg: "the key changes too often to be read"}
}

// item returns the item that the commands for one key have read. same reports whether all of them saw the same
// version.
func (s *Store) item(key string, r reading) (item state.Item, same bool, err error) {
	fields, err := r.fields.Result()
	if goredis.HasErrorPrefix(err, "WRONGTYPE") {
		return item, true, wrongType("redis.Get", key)
	}
	if err != nil {
		return item, false, err
	}
	again, err := r.again.Result()
	if err != nil && !errors.Is(err, goredis.Nil) {
		return item, false, err
	}
	left, err := r.left.Result()
	if err != nil {
		return item, false, err
	}
	value, _ := fields[0].(string)
	version, _ := fields[1].(string)
	tag, _ := fields[2].(string)
	item = state.Item{Key: key, Proof: s.proof()}
	if version != "" {
		item.Value, item.ETag, item.ContentType = []byte(value), version, contentType(version, tag)
		if tag == "" && !json.Valid(item.Value) {
			item.ContentType = state.OctetStream // Dapr wrote bytes
		}
		if left > 0 {
			item.Expires = s.now().Add(left).UTC()
		}
	}
	return item, version == again, nil
}

func wrongType(op, key string) error {
	return &fault.Error{Code: fault.Invalid, Op: op, Key: key,
		Msg:  "the key holds another Redis type than a hash, so it is not state that this store can read",
		Hint: "what Dapr saved with contentType application/json are documents of RedisJSON: save them without it"}
}

// maxPage bounds a page of a listing.
const maxPage = 1000

// List implements state.Lister. Redis does not order keys, so each page reads the names of all keys in the database.
func (s *Store) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	const op = "redis.List"
	limit := r.Limit
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	page := state.Page{Proof: state.Proof{Level: listLevel}}
	for after := r.After; ; {
		names, more, err := s.smallest(ctx, op, r.Prefix, after, limit)
		if err != nil {
			return state.Page{}, err
		}
		items, err := s.items(ctx, op, names)
		if err != nil {
			return state.Page{}, err
		}
		for _, item := range items {
			if item.Err == nil && item.Found() { // it is state, and still there
				item.Proof = page.Proof
				page.Items = append(page.Items, item)
			}
		}
		page.More = more
		if len(page.Items) > 0 || !more {
			return page, nil
		}
		after = names[len(names)-1]
	}
}

// smallest returns, in order, up to limit keys that begin with prefix and are greater than after. It also reports
// whether there are more such keys.
func (s *Store) smallest(ctx context.Context, op, prefix, after string, limit int) ([]string, bool, error) {
	if err := given(ctx, op); err != nil {
		return nil, false, err
	}
	const degree = 32
	keys := btree.NewG(degree, func(a, b string) bool { return cmp.Less(a, b) })
	err := s.scan(ctx, s.pattern(prefix), func(names []string) {
		for _, name := range names {
			key, ok := s.stored(name)
			if !ok || !strings.HasPrefix(key, prefix) || key <= after && after != "" {
				continue
			}
			if keys.ReplaceOrInsert(key); keys.Len() > limit+1 {
				keys.DeleteMax()
			}
		}
	})
	if err != nil {
		return nil, false, s.failed(op, "", err, false)
	}
	more := keys.Len() > limit
	if more {
		keys.DeleteMax()
	}
	out := make([]string, 0, keys.Len())
	keys.Ascend(func(key string) bool { out = append(out, key); return true })
	return out, more, nil
}

// pattern returns the pattern for SCAN that finds at least all keys with a prefix.
func (s *Store) pattern(prefix string) string {
	if s.settings.hashTags && !strings.Contains(prefix, state.Separator) {
		return "*"
	}
	return globEscaper.Replace(s.name(prefix)) + "*"
}

var globEscaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`, `-`, `\-`)

// scan calls f with the names of all keys that match a pattern. A name may occur several times. Calls of f are not
// concurrent.
func (s *Store) scan(ctx context.Context, pattern string, f func(names []string)) error {
	one := func(ctx context.Context, c goredis.Cmdable, f func([]string)) error {
		const count = 1000 // keys that one step looks at
		for cursor := uint64(0); ; {
			names, next, err := c.Scan(ctx, cursor, pattern, count).Result()
			if err != nil {
				return err
			}
			f(names)
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}
	c, ok := s.client.(*goredis.ClusterClient)
	if !ok {
		return one(ctx, s.client, f)
	}
	pages := make(chan []string)
	ended := make(chan error, 1)
	go func() {
		defer close(pages)
		ended <- c.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
			return one(ctx, node, func(names []string) { pages <- names })
		})
	}()
	for names := range pages {
		f(names)
	}
	return <-ended
}

// expiresIn returns the time in milliseconds until a value expires: 0 means never, a negative number means that it
// has expired already.
func (s *Store) expiresIn(ttl state.TTL) int64 {
	if !ttl.Set {
		ttl = state.TTL{Seconds: s.settings.ttl}
	}
	switch {
	case !ttl.At.IsZero():
		left := ttl.At.Sub(s.now())
		if left <= 0 {
			return -1
		}
		return int64((left + time.Millisecond - 1) / time.Millisecond)
	case ttl.Seconds <= 0:
		return 0
	}
	return ttl.Seconds * 1000
}
