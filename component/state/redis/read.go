package redis

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Get implements state.Store.
func (s *Store) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	const op = "redis.Get"
	if err := given(ctx, op); err != nil {
		return state.Item{}, err
	}
	if s.settings.kind == cluster { // a read of several keys would wait for the slowest server
		return gathered{s}.ReadOne(ctx, r.Key)
	}
	item, err := s.gather.Get(ctx, r.Key)
	if _, ours := fault.As(err); err != nil && !ours { // ctx has ended
		return state.Item{}, s.failed(op, r.Key, err, false)
	}
	return item, err
}

// gathered implements outside.Reader.
type gathered struct{ *Store }

// ReadOne implements outside.Reader.
func (s gathered) ReadOne(ctx context.Context, key string) (state.Item, error) {
	items, err := s.items(ctx, "redis.Get", []string{key}, true)
	if err != nil {
		return state.Item{}, err
	}
	return items[0], items[0].Err
}

// ReadMany implements outside.Reader.
func (s gathered) ReadMany(ctx context.Context, keys []string) ([]state.Item, error) {
	return s.items(ctx, "redis.Get", keys, true)
}

// BulkGet implements state.BulkGetter. It reads each item atomically. Different items may be from different points
// in time.
func (s *Store) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	const op, portion = "redis.BulkGet", 256 // keys per round trip
	if err := given(ctx, op); err != nil {
		return nil, err
	}
	out := make([]state.Item, 0, len(r.Keys))
	size := int64(0)
	for keys := range slices.Chunk(r.Keys, portion) {
		items, err := s.items(ctx, op, keys, true)
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

// reading has the commands that read one key.
type reading struct {
	at     int          // position of the key
	fields *goredis.Cmd // not a SliceCmd, which accepts a number instead of an array
	left   *goredis.DurationCmd
	again  *goredis.StringCmd
}

// items reads keys in one round trip, with several commands for each key. It reads a key again if a concurrent write
// changed the key's version between these commands. If values is false, it does not read the values of Redis hashes and
// strings.
func (s *Store) items(ctx context.Context, op string, keys []string, values bool) ([]state.Item, error) {
	const rounds = 100
	if err := given(ctx, op); err != nil {
		return nil, err
	}
	fields := []any{fieldVersion, fieldTag, fieldData}
	if !values {
		fields = fields[:1]
	}
	var others []int
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
			readings[i] = reading{at: at, fields: pipe.Do(ctx, append([]any{"hmget", name}, fields...)...),
				left: pipe.PTTL(ctx, name), again: pipe.HGet(ctx, name, fieldVersion)}
		}
		execute(ctx, pipe)
		for _, r := range readings {
			key := keys[r.at]
			item, same, err := s.item(key, r, len(fields))
			switch {
			case goredis.HasErrorPrefix(err, "WRONGTYPE"):
				others = append(others, r.at)
				continue
			case err != nil:
				return nil, s.failed(op, key, err, false)
			case !same:
				changed = append(changed, r.at)
				continue
			}
			out[r.at] = item
		}
		if pending = changed; len(pending) == 0 {
			return out, s.others(ctx, op, keys, others, values, out)
		}
	}
	return nil, &fault.Error{Code: fault.Unavailable, Op: op, Key: keys[pending[0]],
		Msg: "the key changes too often to be read"}
}

// item returns the item of a key from the replies to the commands in r. If unchanged is false, a concurrent write came
// between two of these commands, and the caller must read the key again. fieldCount is the number of hash fields that
// the caller has requested.
func (s *Store) item(key string, r reading, fieldCount int) (item state.Item, unchanged bool, err error) {
	fields, err := r.fields.Slice()
	if err != nil {
		return item, false, err
	}
	if len(fields) != fieldCount {
		return item, false, errors.New("redis: the answer has another number of fields")
	}
	again, err := r.again.Result()
	if err != nil && !errors.Is(err, goredis.Nil) {
		return item, false, err
	}
	left, err := r.left.Result()
	if err != nil {
		return item, false, err
	}
	item = state.Item{Key: key, Proof: s.proof()}
	version, _ := fields[0].(string)
	if item.ETag = version; version != "" && left > 0 {
		item.Expires = s.now().Add(left).UTC()
	}
	if version != "" && len(fields) > 1 {
		tag, _ := fields[1].(string)
		value, _ := fields[2].(string)
		item.Value, item.ContentType = []byte(value), contentType(version, tag)
		if tag == "" && !json.Valid(item.Value) {
			item.ContentType = state.OctetStream // Dapr has written bytes
		}
	}
	return item, version == again, nil
}

// others reads the keys whose values are not Redis hashes. indexes has the positions of these keys in keys. Each item
// is stored at the same position in out. The result depends on the Redis type:
//
//   - A RedisJSON document is read. Dapr writes such a document for a value with the content type application/json.
//   - A string is read as in Dapr if values is true. Otherwise Item.Err is set, because a listing must not
//     contain the strings of other programs in the same database.
//   - For any other type, Item.Err is set.
func (s *Store) others(ctx context.Context, op string, keys []string, indexes []int, values bool,
	out []state.Item) error {
	if len(indexes) == 0 {
		return nil
	}
	pipe := s.client.Pipeline()
	documents, texts := make([]*goredis.StringCmd, len(indexes)), make([]*goredis.StringCmd, len(indexes))
	left := make([]*goredis.DurationCmd, len(indexes))
	for i, n := range indexes {
		name := s.name(keys[n])
		documents[i] = goredis.NewStringCmd(ctx, "json.get", name)
		_ = pipe.Process(ctx, documents[i])
		if values {
			texts[i] = pipe.Get(ctx, name)
		}
		left[i] = pipe.PTTL(ctx, name)
	}
	execute(ctx, pipe)
	for i, n := range indexes {
		item := &out[n]
		item.Key, item.Proof = keys[n], s.proof()
		text, err := documents[i].Bytes()
		if err == nil {
			item.Value, item.ETag = document(text)
		} else if refused(err) && values {
			if text, err = texts[i].Bytes(); err == nil {
				item.Value, item.ETag = text, stringETag(text)
				if !json.Valid(text) {
					item.ContentType = state.OctetStream
				}
			}
		}
		switch {
		case errors.Is(err, goredis.Nil): // the key was deleted in the meantime
			continue
		case err != nil && !refused(err):
			return s.failed(op, keys[n], err, false)
		case item.ETag == "":
			item.Err = wrongType(op, keys[n])
		}
		if d := left[i].Val(); d > 0 {
			item.Expires = s.now().Add(d).UTC()
		}
	}
	return nil
}

// refused reports whether err is an error reply of Redis.
func refused(err error) bool {
	var answer goredis.Error
	return errors.As(err, &answer) && !errors.Is(err, goredis.Nil)
}

// stringETag returns an ETag for a Redis string. The ETag depends only on the text, because a Redis string has no
// version. A write with this ETag always fails.
func stringETag(text []byte) string {
	sum := sha256.Sum256(text)
	return "string-" + hex.EncodeToString(sum[:8])
}

// document parses a document of the form {"data": value, "version": number} and returns its value and version. The
// version is empty if the text has another form.
func document(text []byte) (value []byte, version string) {
	var d struct {
		Data    json.RawMessage
		Version json.Number
	}
	if json.Unmarshal(text, &d) != nil || d.Data == nil {
		return nil, ""
	}
	return d.Data, d.Version.String()
}

func wrongType(op, key string) error {
	return &fault.Error{Code: fault.Invalid, Op: op, Key: key,
		Msg:  "the key holds neither a hash nor a document of RedisJSON nor a string, so it is not state",
		Hint: "delete it in Redis, or use another key"}
}

// expiresIn returns the time in milliseconds until a value expires. 0 means never. A negative number means that the
// value has already expired.
func (s *Store) expiresIn(ttl state.TTL) int64 {
	if !ttl.Set {
		ttl = state.TTL{Seconds: s.settings.ttl}
	}
	switch {
	case ttl.At != nil:
		left := ttl.At.Sub(s.now())
		if left <= 0 {
			return -1
		}
		return int64((left-1)/time.Millisecond) + 1 // rounded up; left may be the longest Duration
	case ttl.Seconds <= 0:
		return 0
	}
	return ttl.Seconds * 1000
}
