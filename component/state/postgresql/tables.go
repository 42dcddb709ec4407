package postgresql

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/quorate/quorate/internal/fault"
)

// migrationKey returns the key of the metadata row that contains the number of executed migration steps. Dapr uses
// the same row.
func (s *Store) migrationKey() string {
	if s.version == V2 {
		return "migrations-state-v2-" + s.settings.prefix
	}
	return "migrations"
}

// cleanupKey returns the key of the metadata row that contains the time at which expired rows were last removed. Each
// table has its own row, because several stores can share one metadata table. Dapr uses the same rows, with one
// exception: in v1, it has only the row "last-cleanup" for all tables.
func (s *Store) cleanupKey() string {
	switch {
	case s.version == V2:
		return "last-cleanup-state-v2-" + s.settings.prefix
	case s.settings.table == defaultTable:
		return "last-cleanup"
	}
	return "last-cleanup-" + s.settings.table
}

// steps returns the SQL statements that create the tables, in order. A later version of Quorate may append steps but
// must not change existing ones.
func (s *Store) steps() []string {
	if s.version == V2 {
		return []string{`CREATE TABLE IF NOT EXISTS ` + s.settings.table + ` (
key text NOT NULL PRIMARY KEY,
value bytea NOT NULL,
etag uuid NOT NULL DEFAULT gen_random_uuid(),
created_at timestamp with time zone NOT NULL DEFAULT now(),
updated_at timestamp with time zone,
expires_at timestamp with time zone
); CREATE INDEX ON ` + s.settings.table + ` (expires_at)`}
	}
	return []string{
		`CREATE TABLE IF NOT EXISTS ` + s.settings.table + ` (
key text NOT NULL PRIMARY KEY,
value jsonb NOT NULL,
isbinary boolean NOT NULL,
insertdate timestamp with time zone NOT NULL DEFAULT now(),
updatedate timestamp with time zone
)`,
		`ALTER TABLE ` + s.settings.table + ` ADD COLUMN IF NOT EXISTS expiredate timestamp with time zone`,
	}
}

// migrate creates the tables that do not exist. If all tables exist, it changes nothing and needs no permission to
// create tables.
func (s *Store) migrate(ctx context.Context) error {
	const attempts = 10
	for attempt := 1; ; attempt++ {
		err := s.migrateOnce(ctx)
		// Two nodes may create a table at the same moment.
		var answer *pgconn.PgError
		if !errors.As(err, &answer) || !slices.Contains(duplicates(), answer.Code) || attempt == attempts {
			return err
		}
	}
}

func (s *Store) migrateOnce(ctx context.Context) error {
	const op = "postgresql.Open"
	fail := func(err error, what string) error {
		failed := s.failed(op, "", err, unsent)
		return &fault.Error{Code: fault.CodeOf(failed), Op: op, Msg: what, Err: failed}
	}
	var known bool
	table, err := s.complete(ctx, s.pool)
	if err == nil {
		err = s.pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, s.settings.metadata).Scan(&known)
	}
	if err != nil {
		return fail(err, "looking for the table "+s.settings.table)
	}
	done := 0
	if known {
		if done, err = s.stepsDone(ctx, s.pool); err != nil {
			return fail(err, "reading the table "+s.settings.metadata)
		}
	}
	if table && done >= len(s.steps()) {
		return nil
	}
	if !known {
		_, err = s.pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS `+s.settings.metadata+
			` (key text NOT NULL PRIMARY KEY, value text NOT NULL)`)
		if err != nil {
			return fail(err, "creating the table "+s.settings.metadata)
		}
	}
	if err := s.perform(ctx); err != nil {
		return fail(err, "creating the table "+s.settings.table)
	}
	return nil
}

// rower is a pool, a connection or a transaction. It executes queries that return one row.
type rower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// complete reports whether the table exists with all columns. A v1 table without the column expiredate is not complete.
// The second migration step adds this column.
func (s *Store) complete(ctx context.Context, from rower) (yes bool, err error) {
	const has = `EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = `
	err = from.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL AND
(NOT `+has+`'isbinary') OR `+has+`'expiredate'))`, s.settings.table).Scan(&yes)
	return yes, err
}

// stepsDone returns the number of executed migration steps according to the metadata table. In v1, this number is
// shared by all tables with the same metadata table, so the steps may have been executed only for another table.
func (s *Store) stepsDone(ctx context.Context, from rower) (int, error) {
	var text string
	err := from.QueryRow(ctx, `SELECT value FROM `+s.settings.metadata+` WHERE key = $1`, s.migrationKey()).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, &fault.Error{Code: fault.Corrupt, Op: "postgresql.Open",
			Msg: "the row " + s.migrationKey() + " of " + s.settings.metadata + " is not a number"}
	}
	return n, nil
}

// perform executes the migration steps that were not executed yet. It locks the same row as Dapr, so that concurrent
// migrations run one after the other.
func (s *Store) perform(ctx context.Context) error {
	const row = "lock"
	_, err := s.pool.Exec(ctx, `INSERT INTO `+s.settings.metadata+
		` (key, value) VALUES ($1, 'lock') ON CONFLICT (key) DO NOTHING`, row)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT value FROM `+s.settings.metadata+` WHERE key = $1 FOR UPDATE`, row)
		if err != nil {
			return err
		}
		done, err := s.stepsDone(ctx, tx)
		if err != nil {
			return err
		}
		steps := s.steps()
		table, err := s.complete(ctx, tx)
		if err != nil {
			return err
		}
		next := min(done, len(steps))
		if !table {
			next = 0 // the steps were for another table, or the table was dropped
		}
		for _, step := range steps[next:] {
			if _, err := tx.Exec(ctx, step, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `INSERT INTO `+s.settings.metadata+` (key, value) VALUES ($1, $2)
ON CONFLICT (key) DO UPDATE SET value = excluded.value`, s.migrationKey(), strconv.Itoa(max(done, len(steps))))
		return err
	})
}

// removeExpired removes expired rows. It does nothing if another node or Dapr has removed them within the cleanup
// interval.
func (s *Store) removeExpired(ctx context.Context) error {
	bounded, cancel := s.limited(ctx)
	defer cancel()
	tag, err := s.pool.Exec(bounded, `INSERT INTO `+s.settings.metadata+` AS m (key, value) VALUES ($1, now()::text)
ON CONFLICT (key) DO UPDATE SET value = now()::text
WHERE m.value::timestamptz <= now() - $2 * interval '1 microsecond'`,
		s.cleanupKey(), s.settings.cleanup.Microseconds())
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	for {
		bounded, cancel := s.limited(ctx)
		tag, err := s.pool.Exec(bounded, s.sql.expired)
		cancel()
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
	}
}
