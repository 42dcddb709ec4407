package postgresql

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// Set implements state.Store. It is atomic.
func (s *Store) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	return s.apply(ctx, "postgresql.Set", r.RequestID, outside.Upserts(r.Items))
}

// Delete implements state.Store.
func (s *Store) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	return s.apply(ctx, "postgresql.Delete", r.RequestID, []state.Operation{outside.Removal(r)})
}

// Transact implements state.Transactor.
func (s *Store) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	return s.apply(ctx, "postgresql.Transact", r.RequestID, r.Operations)
}

// change is a list of operations that are applied atomically.
type change struct {
	*Store
	op   string
	ops  []state.Operation
	last map[string]int // index of the last operation on each key
	etag map[string]string

	lastUpsert map[string]int  // index of the last upsert of each key
	created    map[string]bool // keys that must not exist before
}

// apply carries out operations atomically. It retries if another transaction causes a rollback.
func (s *Store) apply(ctx context.Context, op, requestID string, ops []state.Operation) (state.Written, error) {
	const attempts = 10
	c := &change{Store: s, op: op, ops: ops, last: outside.Last(ops), lastUpsert: map[string]int{},
		created: map[string]bool{}}
	for i := range ops {
		if ops[i].Kind == state.Upsert {
			c.lastUpsert[ops[i].Key] = i
		}
		if outside.Creates(&ops[i]) {
			c.created[ops[i].Key] = true
		}
	}
	if err := c.check(ctx, requestID); err != nil || len(ops) == 0 {
		return state.Written{Proof: s.proof()}, err
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	for attempt := 1; ; attempt++ {
		c.etag = map[string]string{}
		err := c.run(ctx)
		if err == nil {
			return state.Written{ETags: c.etags(), Proof: s.proof()}, nil
		}
		// Another transaction caused a rollback.
		if again(err) && attempt < attempts && ctx.Err() == nil {
			continue
		}
		return state.Written{}, err
	}
}

func (c *change) check(ctx context.Context, requestID string) error {
	if err := c.gate.Enter(ctx, c.op); err != nil {
		return err
	}
	for i := range c.ops {
		if unstorable(c.ops[i].Key) {
			return &fault.Error{Code: fault.Invalid, Op: c.op, Key: c.ops[i].Key,
				Msg: "the key has a NUL character, which PostgreSQL cannot store"}
		}
	}
	return outside.Check(c.op, "PostgreSQL", requestID, c.ops)
}

// run executes the operations once. It uses one statement for a single operation, and for several unconditional
// upserts. In all other cases it uses a transaction.
func (c *change) run(ctx context.Context) error {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return c.failed(c.op, c.ops[0].Key, err, unsent)
	}
	defer conn.Release()
	if len(c.ops) == 1 {
		err = c.single(ctx, conn)
	} else if c.plain() {
		err = c.write(ctx, conn, c.sql.upsert, slices.Sorted(maps.Keys(c.last)))
	} else {
		err = c.transaction(ctx, conn)
	}
	if err == nil {
		return nil
	}
	if _, ours := fault.As(err); ours {
		return err
	}
	return c.failed(c.op, c.ops[0].Key, err, writing)
}

// plain reports whether all operations are upserts without a condition.
func (c *change) plain() bool {
	return !slices.ContainsFunc(c.ops, func(o state.Operation) bool {
		return o.Kind == state.Remove || outside.Conditional(&o)
	})
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// single carries out one operation in one statement.
func (c *change) single(ctx context.Context, conn querier) error {
	o := &c.ops[0]
	keys := []string{o.Key}
	switch {
	case o.Kind == state.Remove && o.ETag == "":
		_, err := c.exec(ctx, conn, c.sql.remove, keys)
		return err
	case o.Kind == state.Remove:
		n, err := c.exec(ctx, conn, c.sql.removeIf, o.Key, o.ETag)
		if err == nil && n == 0 {
			return outside.Conflict(c.op, o)
		}
		return err
	case o.ETag != "":
		if err := c.write(ctx, conn, c.sql.update, keys, o.ETag); err != nil {
			return err
		}
	case outside.Creates(o):
		if err := c.write(ctx, conn, c.sql.create, keys); err != nil {
			return err
		}
	default:
		return c.write(ctx, conn, c.sql.upsert, keys)
	}
	if c.etag[o.Key] == "" {
		return outside.Conflict(c.op, o)
	}
	return nil
}

func (c *change) exec(ctx context.Context, conn querier, sql string, args ...any) (int64, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return 0, err
	}
	rows.Close()
	return rows.CommandTag().RowsAffected(), rows.Err()
}

// write writes the values of keys and stores their new ETags in c.etag. sql is one of the statements upsert, create and
// update. more contains the further arguments of this statement.
func (c *change) write(ctx context.Context, conn querier, sql string, keys []string, more ...any) error {
	if len(keys) == 0 {
		return nil
	}
	values, texts := make([][]byte, len(keys)), make([]string, len(keys))
	etags, bytes := make([]string, len(keys)), make([]bool, len(keys))
	left := make([]int64, len(keys))
	for i, key := range keys {
		o := &c.ops[c.lastUpsert[key]]
		left[i] = c.expiresIn(o.TTL)
		values[i], etags[i] = o.Value, outside.NewETag(o.ContentType != "")
		texts[i], bytes[i] = encode(o)
		if values[i] == nil {
			values[i] = []byte{}
		}
	}
	args := []any{keys, values, etags, left}
	if c.version == V1 {
		args = []any{keys, texts, bytes, left}
	}
	rows, err := conn.Query(ctx, sql, append(args, more...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var key, etag string
		if err := rows.Scan(&key, &etag); err != nil {
			return err
		}
		if _, ours := c.last[key]; !ours {
			return errStranger
		}
		c.etag[key] = etag
	}
	return rows.Err()
}

// encode returns a value in the format of v1. It returns a JSON value unchanged. It returns any other value as a JSON
// string in base64, and bytes is then true.
func encode(o *state.Operation) (text string, bytes bool) {
	if o.ContentType == "" && json.Valid(o.Value) {
		return string(o.Value), false
	}
	return `"` + base64.StdEncoding.EncodeToString(o.Value) + `"`, true
}

// transaction locks the rows of the keys and executes the operations if all their conditions are met.
func (c *change) transaction(ctx context.Context, conn interface {
	Begin(ctx context.Context) (pgx.Tx, error)
},
) (err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return c.failed(c.op, c.ops[0].Key, err, unsent)
	}
	defer func() {
		if err == nil {
			return
		}
		// The connection is closed if this fails, which rolls back too.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = tx.Rollback(bounded)
	}()
	current, err := c.lock(ctx, tx)
	if err == nil {
		err = outside.Permit(c.op, c.ops, current)
	}
	if err == nil {
		err = c.carryOut(ctx, tx)
	}
	if err != nil {
		if _, ours := fault.As(err); ours {
			return err
		}
		return c.failed(c.op, c.ops[0].Key, err, unsent) // the transaction was not committed
	}
	return tx.Commit(ctx)
}

// lock locks the rows of all keys and returns their ETags.
func (c *change) lock(ctx context.Context, tx pgx.Tx) (map[string]string, error) {
	rows, err := tx.Query(ctx, c.sql.lock, slices.Sorted(maps.Keys(c.last)))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[string]string{}
	for rows.Next() {
		var key, etag string
		var expired bool
		if err := rows.Scan(&key, &etag, &expired); err != nil {
			return nil, err
		}
		if _, ours := c.last[key]; !ours {
			return nil, errStranger
		}
		if !expired {
			out[key] = etag
		}
	}
	return out, rows.Err()
}

// carryOut writes and deletes rows. It returns fault.Conflict if a row that it must create exists already. The earlier
// check of the conditions is not sufficient for such a row: a missing row cannot be locked, so another transaction may
// have created it after the check.
func (c *change) carryOut(ctx context.Context, tx pgx.Tx) error {
	var created, written, removed []string
	for _, key := range slices.Sorted(maps.Keys(c.last)) {
		remove := c.ops[c.last[key]].Kind == state.Remove
		switch {
		case c.created[key]:
			created = append(created, key)
		case !remove:
			written = append(written, key)
		}
		if remove {
			removed = append(removed, key)
		}
	}
	if err := c.write(ctx, tx, c.sql.create, created); err != nil {
		return err
	}
	for _, key := range created {
		if c.etag[key] == "" {
			return outside.Conflict(c.op, &state.Operation{Write: state.Write{Key: key,
				Concurrency: state.FirstWrite}})
		}
	}
	if err := c.write(ctx, tx, c.sql.upsert, written); err != nil || len(removed) == 0 {
		return err
	}
	_, err := c.exec(ctx, tx, c.sql.remove, removed)
	return err
}

// etags returns the ETag of each operation. In v1, the ETag is the number of the transaction, so all upserts have the
// same ETag.
func (c *change) etags() []string {
	out := outside.ETags(c.ops, c.last, c.etag)
	for i, o := range c.ops {
		if c.version == V1 && o.Kind == state.Upsert {
			out[i] = c.etag[o.Key]
		}
	}
	return out
}

// expiresIn returns the time in microseconds until a value expires. 0 means never. A negative number means that the
// value has already expired.
func (s *Store) expiresIn(ttl state.TTL) int64 {
	switch {
	case !ttl.Set:
		return 0
	case ttl.At != nil:
		left := ttl.At.UnixMicro() - s.now().UnixMicro() // may be too long for a time.Duration
		if left <= 0 {
			return -1
		}
		return left
	case ttl.Seconds <= 0:
		return 0
	}
	return ttl.Seconds * int64(time.Second/time.Microsecond)
}
