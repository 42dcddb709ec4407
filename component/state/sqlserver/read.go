package sqlserver

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// Get implements state.Store.
func (s *Store) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	const op = "sqlserver.Get"
	out := state.Item{Key: r.Key, Proof: s.proof()}
	if s.unknown(r.Key) {
		return out, s.gate.Enter(ctx, op)
	}
	found, err := s.query(ctx, op, r.Key, 1, true, 0, s.sql.get, sql.Named("K", r.Key))
	if err != nil {
		return state.Item{}, err
	}
	if len(found) == 0 {
		return out, nil
	}
	item := found[0]
	if item.Key != r.Key {
		return state.Item{}, stranger(op, r.Key)
	}
	item.Proof = s.proof()
	return item, item.Err
}

// stranger returns the error of an answer with a row that was not requested.
func stranger(op, key string) error {
	return &fault.Error{Code: fault.Corrupt, Op: op, Key: key,
		Msg: "SQL Server answered with a row that was not requested", Hint: "check the address of the server"}
}

// BulkGet implements state.BulkGetter. It reads all keys in one statement. If bulkGetChunkSize is set, it uses one
// statement for each chunk of this size.
func (s *Store) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	const op = "sqlserver.BulkGet"
	if err := s.gate.Enter(ctx, op); err != nil {
		return nil, err
	}
	times := map[string]int64{}
	for _, key := range r.Keys {
		if !s.unknown(key) {
			times[key]++
		}
	}
	keys := make([]string, 0, len(times))
	for key := range times {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	size := s.settings.chunk
	if size == 0 {
		size = max(len(keys), 1)
	}
	found, total := map[string]state.Item{}, int64(0)
	for some := range slices.Chunk(keys, size) {
		items, err := s.query(ctx, op, "", len(some), true, r.MaxBytes, s.sql.bulk, keysParameter(some))
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			if times[item.Key] == 0 {
				continue // the collation treats this key as equal to a requested key
			}
			total += times[item.Key] * int64(len(item.Value))
			found[item.Key] = item
		}
		if r.MaxBytes > 0 && total > r.MaxBytes {
			return nil, state.ValuesTooLarge(op, r.MaxBytes)
		}
	}
	out := make([]state.Item, len(r.Keys))
	for i, key := range r.Keys {
		item, ok := found[key]
		if !ok {
			item = state.Item{Key: key, Proof: s.bulkProof()}
		}
		out[i] = item
	}
	return out, nil
}

// keysParameter returns the parameter of statements.bulk.
func keysParameter(keys []string) sql.NamedArg {
	text, _ := json.Marshal(keys) // strings can always be encoded
	return sql.Named("Keys", value{text: some(string(text))}.parameter())
}

// maxPage bounds a page of a listing.
const maxPage = 1000

// List implements state.Lister. Pages are in the order of UTF-16 code units.
func (s *Store) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	limit := r.Limit
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	page := state.Page{Proof: s.bulkProof()}
	if !utf8.ValidString(r.Prefix) {
		return page, s.gate.Enter(ctx, "sqlserver.List")
	}
	from, after, end := outside.Bounds(r)
	exclusive := after >= from && after != ""
	if exclusive {
		from = after
	}
	args := []any{sql.Named("Limit", int64(limit)+1), sql.Named("From", from)}
	if end != "" {
		args = append(args, sql.Named("End", end))
	}
	var err error
	page.Items, err = s.query(ctx, "sqlserver.List", "", limit+1, false, 0, s.sql.page(exclusive, end), args...)
	if err != nil {
		return state.Page{}, err
	}
	if page.More = len(page.Items) > limit; page.More {
		page.Items = page.Items[:limit]
	}
	return page, nil
}

// unknown reports whether the table cannot contain a key, because of its form or length.
func (s *Store) unknown(key string) bool {
	switch s.settings.keyType {
	case keyUUID:
		id, err := uuid.Parse(key)
		return err != nil || id.String() != key
	case keyInteger:
		n, err := strconv.ParseInt(key, 10, 32)
		return err != nil || strconv.FormatInt(n, 10) != key
	}
	return !utf8.ValidString(key) || len(utf16.Encode([]rune(key))) > s.settings.length
}

// query executes a query and returns the items in its rows. Set values if the rows contain values. query returns
// fault.Corrupt if there are more than limit rows, and fault.TooLarge if the values have more than maxBytes bytes in
// total. A maxBytes of 0 means no limit.
func (s *Store) query(ctx context.Context, op, key string, limit int, values bool, maxBytes int64, statement string,
	args ...any,
) ([]state.Item, error) {
	var out []state.Item
	err := s.call(ctx, op, key, reading, func(ctx context.Context, conn *sql.Conn, _ *atomic.Bool) error {
		items, size := []state.Item(nil), int64(0)
		rows, err := conn.QueryContext(ctx, statement, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			item, err := s.item(rows, values)
			if err != nil {
				return err
			}
			if len(items) == limit {
				return stranger(op, key)
			}
			if size += int64(len(item.Value)); maxBytes > 0 && size > maxBytes {
				return state.ValuesTooLarge(op, maxBytes)
			}
			items = append(items, item)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		out = items
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// item returns the item in the current row. Set values if the row contains a value. If the value cannot be decoded,
// Item.Err is set and the error is nil.
func (s *Store) item(rows *sql.Rows, values bool) (state.Item, error) {
	out := state.Item{Proof: s.bulkProof()}
	var v value
	var version []byte
	var left sql.NullInt64
	columns := []any{&out.Key, &v.text, &v.bytes, &v.binary, &version, &left}
	if !values {
		columns = []any{&out.Key, &version, &left}
	}
	if err := rows.Scan(columns...); err != nil {
		return out, err
	}
	out.ETag = hex.EncodeToString(version)
	if left.Valid {
		out.Expires = outside.Expiry(s.now(), left.Int64)
	}
	if !values {
		return out, nil
	}
	var err error
	if out.Value, out.ContentType, err = decode(v); err != nil {
		failed := &fault.Error{Code: fault.Corrupt, Op: "sqlserver.Get", Key: out.Key, Err: err,
			Msg: "the row is not one of a state store"}
		return state.Item{Key: out.Key, Err: failed, Proof: out.Proof}, nil
	}
	return out, nil
}

// etag converts an ETag to a rowversion. It returns nil if text is not 8 bytes in hexadecimal.
func etag(text string) []byte {
	out, err := hex.DecodeString(strings.ToLower(text))
	if err != nil || len(out) != 8 {
		return nil
	}
	return out
}
