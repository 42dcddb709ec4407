package sqlserver

import (
	"context"
	"database/sql"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// Set implements state.Store. It is atomic.
func (s *Store) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	return s.apply(ctx, "sqlserver.Set", r.RequestID, outside.Upserts(r.Items))
}

// Delete implements state.Store.
func (s *Store) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	return s.apply(ctx, "sqlserver.Delete", r.RequestID, []state.Operation{outside.Removal(r)})
}

// Transact implements state.Transactor.
func (s *Store) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	return s.apply(ctx, "sqlserver.Transact", r.RequestID, r.Operations)
}

// change is a list of operations that are applied atomically.
type change struct {
	*Store
	op   string
	ops  []state.Operation
	last map[string]int // index of the last operation on each key
}

// maxItems limits the items of a batch. SQL Server accepts 2100 parameters, and an item has at most 7.
const maxItems = 250

// apply carries out operations atomically.
func (s *Store) apply(ctx context.Context, op, requestID string, ops []state.Operation) (state.Written, error) {
	c := &change{Store: s, op: op, ops: slices.Clone(ops), last: outside.Last(ops)}
	for i := range c.ops {
		c.ops[i].ETag = strings.ToLower(c.ops[i].ETag)
	}
	if err := c.check(ctx, requestID); err != nil || len(ops) == 0 {
		return state.Written{Proof: s.proof()}, err
	}
	var written map[string]string
	err := s.call(ctx, op, c.ops[0].Key, writing, func(ctx context.Context, conn *sql.Conn, sent *atomic.Bool) error {
		etags, err := c.run(ctx, conn, sent)
		if err == nil {
			written = etags
		}
		return err
	})
	if err != nil {
		return state.Written{}, err
	}
	return state.Written{ETags: outside.ETags(c.ops, c.last, written), Proof: s.proof()}, nil
}

func (c *change) check(ctx context.Context, requestID string) error {
	if err := c.gate.Enter(ctx, c.op); err != nil {
		return err
	}
	for i := range c.ops {
		if err := c.storable(&c.ops[i]); err != nil {
			return err
		}
	}
	return outside.Check(c.op, "SQL Server", requestID, c.ops)
}

// storable returns an error if the table cannot store the key of o. The key must have the configured type and length. A
// text key of an upsert must also meet these conditions:
//
//   - It does not end with a space, because SQL Server ignores trailing spaces in comparisons.
//   - It has no control characters, because SQL Server would return such keys in the wrong order.
func (c *change) storable(o *state.Operation) error {
	refuse := func(code fault.Code, msg, hint string) error {
		return &fault.Error{Code: code, Op: c.op, Key: o.Key, Msg: msg, Hint: hint}
	}
	control := func(r rune) bool { return r < ' ' }
	switch set := c.settings; {
	case set.keyType == keyUUID && c.unknown(o.Key):
		return refuse(fault.Invalid, "the key is not a UUID in lower case, as keyType demands",
			"set keyPrefix to none, and write keys as 6b29fc40-ca47-1067-b31d-00dd010662da")
	case set.keyType == keyInteger && c.unknown(o.Key):
		return refuse(fault.Invalid, "the key is not a 32-bit integer, as keyType demands",
			"set keyPrefix to none, and write keys as decimal numbers")
	case set.keyType != keyText || o.Kind == state.Remove && !c.unknown(o.Key):
		return nil
	case !utf8.ValidString(o.Key):
		return refuse(fault.Invalid, "the key is not UTF-8, so SQL Server cannot store it", "")
	case c.unknown(o.Key):
		return refuse(fault.TooLarge, "the key is longer than the "+strconv.Itoa(set.length)+
			" characters that the table has for it", "use shorter keys, or a table with a larger keyLength")
	case strings.HasSuffix(o.Key, " "):
		return refuse(fault.Invalid, "the key ends with a space, which SQL Server ignores when it compares keys", "")
	case strings.ContainsFunc(o.Key, control):
		return refuse(fault.Invalid, "the key has a control character, which SQL Server cannot keep in order", "")
	}
	return nil
}

// run executes the operations once and returns the new ETags by key. It uses a single batch for one operation, and for
// several unconditional operations on at most maxItems keys. Otherwise it uses a transaction.
func (c *change) run(ctx context.Context, conn *sql.Conn, sent *atomic.Bool) (map[string]string, error) {
	if len(c.ops) == 1 {
		return c.single(ctx, conn, sent)
	}
	keys := slices.Sorted(maps.Keys(c.last))
	conditional := slices.ContainsFunc(c.ops, func(o state.Operation) bool { return outside.Conditional(&o) })
	if !conditional && len(keys) <= maxItems {
		text, args := c.statements(keys)
		sent.Store(true)
		return c.write(ctx, conn, batch+begin+text+commit, args, keys)
	}
	return c.transaction(ctx, conn, sent, keys)
}

// single carries out one operation in one batch. It returns the new ETag by key, or fault.Conflict if the condition of
// the operation is not met.
func (c *change) single(ctx context.Context, conn *sql.Conn, sent *atomic.Bool) (map[string]string, error) {
	o := &c.ops[0]
	statement, args := c.sql.upsert, c.args(o, 0)
	switch {
	case o.Kind == state.Remove && o.ETag == "":
		statement = c.sql.remove
	case o.Kind == state.Remove:
		statement = c.sql.removeIf
	case o.ETag != "":
		statement = c.sql.update
	case outside.Creates(o):
		statement = c.sql.create
	}
	if o.ETag != "" {
		version := etag(o.ETag)
		if version == nil { // no row can have this ETag
			return nil, outside.Conflict(c.op, o)
		}
		args = append(args, sql.Named("E0", version))
	}
	sent.Store(true)
	written, err := c.write(ctx, conn, batch+begin+numbered(statement, 0)+commit, args, []string{o.Key})
	if err == nil && written[o.Key] == "" && (o.Kind == state.Upsert || o.ETag != "") {
		return nil, outside.Conflict(c.op, o)
	}
	return written, err
}

// args returns the SQL parameters of operation o for the item number i, except the parameter for the ETag.
func (c *change) args(o *state.Operation, i int) []any {
	n := strconv.Itoa(i)
	args := []any{sql.Named("K"+n, o.Key)}
	if o.Kind == state.Remove {
		return args
	}
	v := encode(c.version, o)
	minutes, micros := c.expiresIn(o.TTL)
	args = append(args, sql.Named("D"+n, v.parameter()), sql.Named("M"+n, minutes), sql.Named("U"+n, micros))
	if c.version == V2 {
		args = append(args, sql.Named("B"+n, v.bytes), sql.Named("I"+n, v.binary))
	}
	return args
}

// statements returns the SQL statements, with their parameters, that apply the last operation on each key.
func (c *change) statements(keys []string) (string, []any) {
	var text strings.Builder
	var args []any
	for i, key := range keys {
		o, statement := &c.ops[c.last[key]], c.sql.upsert
		if o.Kind == state.Remove {
			statement = c.sql.remove
		}
		if i > 0 {
			text.WriteByte(' ')
		}
		text.WriteString(numbered(statement, i))
		args = append(args, c.args(o, i)...)
	}
	return text.String(), args
}

// write executes a batch and returns the new ETag of each written key. The item with number i in the batch belongs to
// keys[i].
func (c *change) write(ctx context.Context, on querier, text string, args []any, keys []string) (map[string]string,
	error,
) {
	numbers, err := outputs(ctx, on, len(keys), text, args...)
	if err != nil {
		return nil, err
	}
	written := map[string]string{}
	for i, version := range numbers {
		written[keys[i]] = hex.EncodeToString(version)
	}
	return written, nil
}

// querier is a connection or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// outputs executes a batch and collects the output rows of all its statements. A row contains the number of an item
// and, for some statements, a rowversion. outputs returns the rowversions by item number, with nil for a row that has
// none. It ignores numbers that are not below limit.
func outputs(ctx context.Context, on querier, limit int, text string, args ...any) (map[int][]byte, error) {
	rows, err := on.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[int][]byte{}
	for {
		names, err := rows.Columns()
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			var number int
			var version []byte
			into := []any{&number, &version}
			if err := rows.Scan(into[:min(len(names), len(into))]...); err != nil {
				return nil, err
			}
			if number >= 0 && number < limit {
				out[number] = version
			}
		}
		if !rows.NextResultSet() {
			return out, rows.Err()
		}
	}
}

// transaction locks the rows of keys and executes the operations if all their conditions are met. It returns the new
// ETags by key.
func (c *change) transaction(ctx context.Context, conn *sql.Conn, sent *atomic.Bool, keys []string,
) (map[string]string, error) {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // no effect after a commit; the end of the connection rolls back too
	current, err := c.lock(ctx, tx, keys)
	if err != nil {
		return nil, err
	}
	if err := outside.Permit(c.op, c.ops, current); err != nil {
		return nil, err
	}
	written := map[string]string{}
	for some := range slices.Chunk(keys, maxItems) {
		text, args := c.statements(some)
		etags, err := c.write(ctx, tx, batch+text, args, some)
		if err != nil {
			return nil, err
		}
		maps.Copy(written, etags)
	}
	sent.Store(true)
	return written, tx.Commit()
}

// lock locks keys, whether they exist or not, and returns the ETags of those that exist.
func (c *change) lock(ctx context.Context, tx *sql.Tx, keys []string) (map[string]string, error) {
	rows, err := tx.QueryContext(ctx, c.sql.lock, keysParameter(keys))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[string]string{}
	for rows.Next() {
		var key string
		var version []byte
		var expired bool
		if err := rows.Scan(&key, &version, &expired); err != nil {
			return nil, err
		}
		if _, ok := c.last[key]; ok && !expired { // the collation may treat other keys as equal
			out[key] = hex.EncodeToString(version)
		}
	}
	return out, rows.Err()
}

// expiresIn returns the time until a value expires, as minutes and microseconds. Negative minutes mean that the
// value never expires. Negative microseconds mean that it has already expired.
func (s *Store) expiresIn(ttl state.TTL) (minutes int64, micros int32) {
	const minute = int64(time.Minute / time.Microsecond)
	switch {
	case !ttl.Set:
		return -1, 0
	case ttl.At != nil:
		left := ttl.At.UnixMicro() - s.now().UnixMicro() // may be too long for a time.Duration
		if left <= 0 {
			return 0, -1
		}
		return left / minute, int32(left % minute) //nolint:gosec // less than a minute
	case ttl.Seconds <= 0:
		return -1, 0
	}
	return ttl.Seconds / 60, int32(ttl.Seconds % 60 * 1e6) //nolint:gosec // less than a minute
}
