// Package postgresql implements the component type state.postgresql, versions v1 and v2: a state store in a PostgreSQL
// table. The package owns the tables and the conversion of PostgreSQL's errors to fault codes. A Store starts a
// goroutine that removes expired rows. Its connection pool and its outside.Gatherer also start goroutines. Close ends
// all of them.
//
// The tables have the layout of Dapr's components of the same versions:
//
//   - In v1, the value is stored as jsonb, which PostgreSQL normalises. The ETag is the number of the transaction that
//     wrote the row.
//   - In v2, the value is stored as bytes, and the ETag is a random UUID. The UUID has version 8 if this package wrote
//     the row and the value is not JSON. Otherwise it has version 4.
package postgresql

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// Type is the component type of this store, and Alias another name for it.
const (
	Type  = "state.postgresql"
	Alias = "state.postgres"
)

// Version is a version of the component type. It determines the layout of the table.
type Version uint8

// The versions.
const (
	V1 Version = 1 // jsonb, and transaction numbers as ETags
	V2 Version = 2 // bytes, and UUIDs as ETags
)

// Options are the settings of a store.
type Options struct {
	Version  Version
	Metadata component.Values // values of Fields(Version)
	Logger   *slog.Logger
	Now      func() time.Time // nil = time.Now
	// LargestValue is the largest value in bytes that is read; 0 = state.LargestValue.
	LargestValue int64
}

// Store implements state.Store and all optional interfaces except state.Watcher.
type Store struct {
	pool     *pgxpool.Pool
	settings settings
	sql      statements
	version  Version
	now      func() time.Time
	log      *slog.Logger
	level    atomic.Value // state.Level of answers
	gather   *outside.Gatherer

	gate outside.Gate
	once sync.Once
	stop context.CancelFunc
	done sync.WaitGroup
}

// Open connects to PostgreSQL and creates the tables if they do not exist. If PostgreSQL cannot be reached, Open
// retries until the deadline of ctx. It returns these errors:
//
//   - fault.Invalid for wrong settings
//   - fault.Denied for refused credentials or missing permissions
//   - fault.Unavailable or fault.Timeout if PostgreSQL does not answer
func Open(ctx context.Context, o Options) (*Store, error) {
	set, err := read(o.Metadata, o.Version)
	if err != nil {
		return nil, err
	}
	bound(set.pool.ConnConfig, cmp.Or(o.LargestValue, state.LargestValue), false)
	pool, err := pgxpool.NewWithConfig(ctx, set.pool)
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "postgresql.Open", Err: err,
			Msg: "the pool of connections cannot be made"}
	}
	s := &Store{pool: pool, settings: set, sql: newStatements(set.table, o.Version), version: o.Version, now: o.Now,
		log: o.Logger}
	if s.now == nil {
		s.now = time.Now
	}
	s.gather = outside.NewGatherer(gathered{s})
	err = outside.Wait(ctx, s.probe)
	if err == nil {
		err = s.migrate(ctx)
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	if set.cleanup > 0 {
		s.done.Go(func() {
			outside.RemoveExpired(background, s.settings.cleanup, s.log, s.settings.table, s.removeExpired)
		})
	}
	return s, nil
}

// Ping implements state.Pinger.
func (s *Store) Ping(ctx context.Context) error { return s.probe(ctx) }

// PingInterval implements state.Pinger.
func (s *Store) PingInterval() time.Duration { return outside.PingInterval }

// probe checks that PostgreSQL answers and accepts writes. It also sets the consistency level that the store reports in
// its answers.
func (s *Store) probe(ctx context.Context) error {
	const op = "postgresql.Open"
	var standby, followed, waits bool
	err := s.pool.QueryRow(ctx, `SELECT pg_is_in_recovery(), EXISTS (SELECT FROM pg_stat_replication),
		current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') <> 'local'`).
		Scan(&standby, &followed, &waits)
	if err != nil {
		return s.failed(op, "", err, reading)
	}
	if standby {
		return &fault.Error{Code: fault.Unavailable, Op: op,
			Msg:  "the PostgreSQL server at " + s.settings.where() + " is a standby, which cannot be written",
			Hint: "give the address of the primary, or all addresses with target_session_attrs=read-write"}
	}
	level := state.Linearizable
	if followed && !waits {
		level = state.Stale // the standby may become the primary without the newest writes
	}
	s.level.Store(level)
	return nil
}

// Close implements state.Store.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.gate.Close()
		s.stop()
		s.done.Wait()
		s.pool.Close()
		s.gather.Wait()
	})
	return nil
}

// Features implements state.Featurer.
func (s *Store) Features() []state.Feature {
	return []state.Feature{state.FeatureETag, state.FeatureTransactional, state.FeatureTTL}
}

func (s *Store) proof() state.Proof { return state.Proof{Level: s.level.Load().(state.Level)} }

// limited returns a context that ends with ctx or after the component's timeout, whichever is earlier.
func (s *Store) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.settings.timeout)
}
