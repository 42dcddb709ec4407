// Package sqlserver implements the component type state.sqlserver, versions v1 and v2: a state store in a table of SQL
// Server or Azure SQL. The tables have the same layout as in the same version of Dapr's component.
//
// The ETag of a row is its rowversion in hexadecimal. In v1, every value is in a text column. In v2, a value that is
// not JSON is in a column of bytes. The file value.go describes both formats.
//
// One goroutine removes expired rows. Each call to the database runs in a goroutine of its own, because the client
// library may return seconds after the context has ended. Close waits for all these goroutines.
package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

// Type is the component type of this store.
const Type = "state.sqlserver"

// Version is a version of the component type. It determines the layout of the table.
type Version uint8

// The versions.
const (
	V1 Version = 1 // text
	V2 Version = 2 // text or bytes
)

const (
	timeout  = 20 * time.Second // longest time of one request of an application
	maxConns = 100              // the default of other clients of SQL Server
	maxIdle  = 2 * time.Minute  // time after which an idle connection is closed
)

// Options are the settings of a store.
type Options struct {
	Version  Version
	Metadata component.Values // values of Fields(Version)
	Identity entra.Settings   // identity for useAzureAD
	Logger   *slog.Logger
	Now      func() time.Time // nil = time.Now
	// LargestValue is the largest value in bytes that is read; 0 = state.LargestValue.
	LargestValue int64
}

// Store implements state.Store and all optional interfaces except state.Watcher.
type Store struct {
	db        *sql.DB
	settings  settings
	longest   int64             // largest value that is read, in bytes
	identity  *entra.Credential // nil without useAzureAD
	scope     string            // scope of the tokens
	transport http.RoundTripper // transport to Entra ID
	sql       statements
	version   Version
	now       func() time.Time
	log       *slog.Logger
	one       state.Level // level of answers about one key, and of writes
	many      state.Level // level of answers about several keys

	gate  outside.Gate
	once  sync.Once
	life  context.Context // ends with the store
	stop  context.CancelFunc
	calls sync.RWMutex // running calls hold it for reading
	done  sync.WaitGroup
}

// Open connects to SQL Server and creates the tables if they do not exist. If the connection string names no database,
// Open also creates the database. If SQL Server cannot be reached, Open retries until the deadline of ctx. It returns
// these errors:
//
//   - fault.Invalid for wrong settings
//   - fault.Denied for refused credentials or missing permissions
//   - fault.Unavailable or fault.Timeout if SQL Server does not answer
func Open(ctx context.Context, o Options) (*Store, error) {
	set, err := read(o.Metadata, o.Version)
	if err != nil {
		return nil, err
	}
	s := &Store{settings: set, version: o.Version, now: o.Now, log: o.Logger,
		longest: cmp.Or(o.LargestValue, state.LargestValue)}
	if set.entra {
		o.Identity.Transport = rest.Limit(o.Identity.Transport)
		s.transport, s.scope = o.Identity.Transport, scope(o.Identity)
		if s.identity, err = o.Identity.Credential(); err != nil {
			return nil, err
		}
	}
	connector, err := s.connector(set.database)
	if err != nil {
		return nil, err
	}
	s.db = pool(connector)
	if unchecked(set.client) {
		s.log.Warn("epa enabled: a hostile server can use up the memory, because its messages are not checked")
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.life, s.stop = context.WithCancel(context.Background())
	if set.create {
		err = outside.Wait(ctx, func(ctx context.Context) error { return s.createDatabase(ctx) })
	}
	if err == nil {
		err = outside.Wait(ctx, s.probe)
	}
	if err == nil {
		err = s.prepare(ctx)
	}
	if err != nil {
		_ = s.Close() // the first error is more useful
		return nil, err
	}
	if set.cleanup > 0 {
		s.done.Go(func() {
			outside.RemoveExpired(s.life, s.settings.cleanup, s.log, s.settings.table, s.removeExpired)
		})
	}
	return s, nil
}

// Ping implements state.Pinger.
func (s *Store) Ping(ctx context.Context) error {
	_, err := s.find(ctx)
	return err
}

// PingInterval implements state.Pinger.
func (s *Store) PingInterval() time.Duration { return outside.PingInterval }

// find checks that SQL Server answers, accepts writes and supports JSON. It returns the properties of the database.
func (s *Store) find(ctx context.Context) (*database, error) {
	const op = "sqlserver.Open"
	found := &database{}
	err := s.call(ctx, op, "", reading, func(ctx context.Context, conn *sql.Conn, _ *atomic.Bool) error {
		return conn.QueryRowContext(ctx, databaseQuery).Scan(&found.access, &found.level, &found.snapshot,
			&found.replicated, &found.delayed)
	})
	switch {
	case err != nil:
		return nil, err
	case found.access != "READ_WRITE":
		return nil, &fault.Error{Code: fault.Unavailable, Op: op,
			Msg:  "the database of SQL Server at " + s.settings.where() + " is a replica, which cannot be written",
			Hint: "give the address of the primary or of the listener, and omit ApplicationIntent"}
	case found.level < leastCompatibility:
		return nil, &fault.Error{Code: fault.Invalid, Op: op,
			Msg:  "the compatibility level of the database is below 130, so it cannot read JSON",
			Hint: "run ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL = 130, or use another database"}
	}
	return found, nil
}

// probe checks the database as find does. From its properties, probe determines the consistency levels that the store
// reports in its answers.
func (s *Store) probe(ctx context.Context) error {
	found, err := s.find(ctx)
	if err != nil {
		return err
	}
	s.one = state.Linearizable
	if found.replicated || found.delayed {
		s.one = state.Stale // a replica may become the primary without the newest writes
	}
	s.many = state.Stale
	if found.snapshot {
		s.many = s.one
	}
	if !found.snapshot {
		s.log.Info("the database has no row versions: reads wait for writes of the same rows, and bulk reads are no "+
			"snapshot", "hint", "run ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON while nothing uses it")
	}
	return nil
}

// database has the properties that find reads.
type database struct {
	access                        string
	level                         int64
	snapshot, replicated, delayed bool
}

// leastCompatibility is the compatibility level of SQL Server 2016, the first version that supports OPENJSON.
const leastCompatibility = 130

// Close implements state.Store.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		s.gate.Close()
		s.stop()
		s.done.Wait()
		s.calls.Lock() // waits for running calls; later ones find the gate closed
		defer s.calls.Unlock()
		err = s.db.Close()
		s.identity.Close()
		if t, ok := s.transport.(interface{ CloseIdleConnections() }); ok {
			t.CloseIdleConnections()
		}
	})
	if err != nil {
		return fault.Wrap(err, "sqlserver.Close", "closing the connections to SQL Server")
	}
	return nil
}

// Features implements state.Featurer.
func (s *Store) Features() []state.Feature {
	return []state.Feature{state.FeatureETag, state.FeatureTransactional, state.FeatureTTL}
}

func (s *Store) proof() state.Proof     { return state.Proof{Level: s.one} }
func (s *Store) bulkProof() state.Proof { return state.Proof{Level: s.many} }

// call runs f with a connection. It repeats f after an error if the failed attempt has certainly changed nothing and
// another attempt may succeed, for example after a conflict with another transaction.
//
// f must set sent before it sends a statement that may change data and is not safe to repeat. If f has not set sent,
// call does not return fault.Indeterminate.
//
// call returns at most 200 ms after ctx ends. f may run some seconds longer, so f must not change anything that the
// caller reads after an error.
func (s *Store) call(ctx context.Context, op, key string, doing kind,
	f func(ctx context.Context, conn *sql.Conn, sent *atomic.Bool) error,
) error {
	if err := s.gate.Enter(ctx, op); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	sent := &atomic.Bool{}
	done := make(chan error, 1)
	s.calls.RLock()
	go func() {
		defer s.calls.RUnlock()
		done <- s.attempts(ctx, op, key, doing, sent, f)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	const grace = 200 * time.Millisecond // time for SQL Server to confirm that it has stopped
	select {
	case err := <-done:
		return err
	case <-time.After(grace):
		return s.failed(op, key, ctx.Err(), outcome(doing, sent))
	}
}

// outcome returns the kind of a failed call, as an argument for the method failed. The kind is unsent for a write that
// has not sent a statement, and otherwise the value of doing.
func outcome(doing kind, sent *atomic.Bool) kind {
	if doing == writing && !sent.Load() {
		return unsent
	}
	return doing
}

func (s *Store) attempts(ctx context.Context, op, key string, doing kind, sent *atomic.Bool,
	f func(ctx context.Context, conn *sql.Conn, sent *atomic.Bool) error,
) error {
	const most = 10
	for attempt := 1; ; attempt++ {
		sent.Store(false)
		err := s.attempt(ctx, op, key, sent, f)
		if err == nil {
			return nil
		}
		failed := s.failed(op, key, err, outcome(doing, sent))
		lost := outcome(doing, sent) != writing && fault.Is(failed, fault.Unavailable) && attempt < 3
		if attempt == most || !again(err) && !lost || ctx.Err() != nil || s.gate.Closed() {
			return failed
		}
	}
}

func (s *Store) attempt(ctx context.Context, op, key string, sent *atomic.Bool,
	f func(ctx context.Context, conn *sql.Conn, sent *atomic.Bool) error,
) error {
	if s.gate.Closed() {
		return outside.ErrClosed(op)
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.failed(op, key, err, unsent)
	}
	defer conn.Close()
	err = f(ctx, conn, sent)
	if severed(err) { // otherwise the client would use the connection again
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	return err
}
