package postgresql

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// Get implements state.Store.
func (s *Store) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	const op = "postgresql.Get"
	if unstorable(r.Key) {
		return state.Item{Key: r.Key, Proof: s.proof()}, s.gate.Enter(ctx, op)
	}
	if err := s.gate.Enter(ctx, op); err != nil {
		return state.Item{}, err
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	item, err := s.gather.Get(ctx, r.Key)
	if err != nil {
		return state.Item{}, s.failed(op, r.Key, err, reading)
	}
	return item, nil
}

// gathered implements outside.Reader.
type gathered struct{ *Store }

// ReadOne implements outside.Reader.
func (s gathered) ReadOne(ctx context.Context, key string) (state.Item, error) {
	item := state.Item{Key: key, Proof: s.proof()}
	err := s.query(ctx, "postgresql.Get", key, s.sql.get, []any{key},
		func() { item = state.Item{Key: key, Proof: s.proof()} },
		func(found state.Item) error { item = found; return item.Err })
	if err != nil {
		return state.Item{}, err
	}
	return item, nil
}

// ReadMany implements outside.Reader.
func (s gathered) ReadMany(ctx context.Context, keys []string) ([]state.Item, error) {
	return s.BulkGet(ctx, state.BulkGetRequest{Keys: keys})
}

// BulkGet implements state.BulkGetter. It reads all keys at one instant, in one round trip.
func (s *Store) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	const op = "postgresql.BulkGet"
	keys := make([]string, 0, len(r.Keys))
	for _, key := range r.Keys {
		if !unstorable(key) {
			keys = append(keys, key)
		}
	}
	found := map[string]state.Item{}
	times := map[string]int64{}
	for _, key := range keys {
		times[key]++
	}
	size := int64(0)
	restart := func() { clear(found); size = 0 }
	err := s.query(ctx, op, "", s.sql.bulk, []any{keys}, restart, func(item state.Item) error {
		if times[item.Key] == 0 {
			return errStranger
		}
		if size += times[item.Key] * int64(len(item.Value)); r.MaxBytes > 0 && size > r.MaxBytes {
			return state.ValuesTooLarge(op, r.MaxBytes)
		}
		found[item.Key] = item
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]state.Item, len(r.Keys))
	for i, key := range r.Keys {
		item, ok := found[key]
		if !ok {
			item = state.Item{Key: key, Proof: s.proof()}
		}
		out[i] = item
	}
	return out, nil
}

// errStranger is the error of an answer with a row that was not requested.
var errStranger = errors.New("the answer has a row that was not requested")

// maxPage bounds a page of a listing.
const maxPage = 1000

// List implements state.Lister: one page as of one instant.
func (s *Store) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	limit := r.Limit
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	page := state.Page{Proof: s.proof()}
	from, after, end := outside.Bounds(r)
	args := []any{from, after, end, limit + 1}
	restart := func() { page.Items = nil }
	err := s.query(ctx, "postgresql.List", "", s.sql.list, args, restart, func(item state.Item) error {
		if len(page.Items) > limit {
			return errStranger
		}
		page.Items = append(page.Items, item)
		return nil
	})
	if err != nil {
		return state.Page{}, err
	}
	if page.More = len(page.Items) > limit; page.More {
		page.Items = page.Items[:limit]
	}
	return page, nil
}

// unstorable reports whether PostgreSQL cannot store a text.
func unstorable(text string) bool { return strings.Contains(text, "\x00") || !utf8.ValidString(text) }

// query executes a query and calls take(item) for the item of each row. If PostgreSQL is unavailable, for example
// because the connection was lost, query makes up to three attempts. It calls restart before each attempt, so that the
// caller can discard earlier rows.
func (s *Store) query(ctx context.Context, op, key, sql string, args []any, restart func(),
	take func(state.Item) error,
) error {
	const attempts = 3
	if err := s.gate.Enter(ctx, op); err != nil {
		return err
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	for attempt := 1; ; attempt++ {
		restart()
		err := s.rows(ctx, sql, args, take)
		if err == nil {
			return nil
		}
		if _, ours := fault.As(err); ours {
			return err
		}
		failed := s.failed(op, key, err, reading)
		if attempt == attempts || !fault.Is(failed, fault.Unavailable) || ctx.Err() != nil || s.gate.Closed() {
			return failed
		}
	}
}

func (s *Store) rows(ctx context.Context, sql string, args []any, take func(state.Item) error) error {
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		item, err := s.item(rows)
		if err == nil {
			err = take(item)
		}
		if err != nil {
			return err
		}
	}
	return rows.Err()
}

// item converts the current row to an item. If the value cannot be decoded, Item.Err is set.
func (s *Store) item(row pgx.Rows) (state.Item, error) {
	item := state.Item{Proof: s.proof()}
	var bytes bool
	var left *float64
	if err := row.Scan(&item.Key, &item.Value, &bytes, &item.ETag, &left); err != nil {
		return item, err
	}
	if left != nil {
		const longest = 1e12 // seconds; more do not fit in an int64 as microseconds
		item.Expires = outside.Expiry(s.now(), int64(min(*left, longest)*1e6))
	}
	switch {
	case bytes: // only v1 marks values as bytes
		item.ContentType = state.OctetStream
		decode(&item)
	case s.version == V2 && item.Value != nil: // the rows of a listing have no value
		item.ContentType = outside.ContentType(item.ETag, item.Value)
	}
	return item, nil
}

// decode replaces the value of an item, which v1 has stored as a JSON string in base64, with the original bytes. If
// this fails, decode sets item.Err and keeps only the key and the proof of the item.
func decode(item *state.Item) {
	var text string
	err := json.Unmarshal(item.Value, &text)
	if err == nil {
		item.Value, err = base64.StdEncoding.DecodeString(text)
	}
	if err != nil {
		failed := &fault.Error{Code: fault.Corrupt, Op: "postgresql.Get", Key: item.Key,
			Msg: "the row is marked as bytes, and its value is not base64"}
		*item = state.Item{Key: item.Key, Err: failed, Proof: item.Proof}
	}
}
