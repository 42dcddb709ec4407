package postgresql

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// listenPing is the time without a notification after which Listen checks the connection.
const listenPing = 10 * time.Second

// largestNotification is the maximum size in bytes of a value on a connection that receives notifications. A
// notification needs less, because PostgreSQL limits it to 8000 bytes.
const largestNotification = 64 << 10

// Client sends statements to PostgreSQL on behalf of components of other building blocks. It has the same connection
// settings and errors as a Store, but no tables. It is safe for concurrent use.
type Client struct{ store *Store }

// Dial connects to PostgreSQL. If PostgreSQL cannot be reached, Dial retries until the deadline of ctx. o.Metadata has
// the values of ClientFields.
func Dial(ctx context.Context, o Options) (*Client, error) {
	set, err := readConnection(o.Metadata)
	if err != nil {
		return nil, err
	}
	bound(set.pool.ConnConfig, cmp.Or(o.LargestValue, state.LargestValue), false)
	pool, err := pgxpool.NewWithConfig(ctx, set.pool)
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "postgresql.Dial", Err: err,
			Msg: "the pool of connections cannot be made"}
	}
	c := &Client{&Store{pool: pool, settings: set, log: o.Logger}}
	if err := outside.Wait(ctx, func(ctx context.Context) error {
		if err := pool.Ping(ctx); err != nil {
			return c.store.failed("postgresql.Dial", "", err, reading)
		}
		return nil
	}); err != nil {
		pool.Close()
		return nil, err
	}
	return c, nil
}

// Read runs a statement that only reads, and calls the function row for each row of the result.
func (c *Client) Read(ctx context.Context, op string, row func(pgx.CollectableRow) error, sql string,
	args ...any) error {
	if err := c.store.gate.Enter(ctx, op); err != nil {
		return err
	}
	ctx, cancel := c.store.limited(ctx)
	defer cancel()
	rows, err := c.store.pool.Query(ctx, sql, args...)
	if err == nil {
		_, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (struct{}, error) { return struct{}{}, row(r) })
	}
	if err != nil {
		return c.store.failed(op, "", err, reading)
	}
	return nil
}

// Listen opens a connection and receives the notifications of a channel. It calls ready once the subscription is
// active, and then message(payload) for each notification. It returns when ctx ends or the connection is lost.
func (c *Client) Listen(ctx context.Context, channel string, ready func(), message func(payload string)) error {
	const op = "postgresql.Listen"
	if err := c.store.gate.Enter(ctx, op); err != nil {
		return err
	}
	bounded, cancel := c.store.limited(ctx)
	defer cancel()
	config := c.store.settings.pool.ConnConfig.Copy()
	bound(config, largestNotification, true)
	conn, err := pgx.ConnectConfig(bounded, config)
	if err != nil {
		return c.store.failed(op, "", err, reading)
	}
	defer conn.Close(context.WithoutCancel(bounded)) //nolint:errcheck // the connection is not used again
	if _, err := conn.Exec(bounded, "LISTEN "+channel); err != nil {
		return c.store.failed(op, "", err, reading)
	}
	ready()
	for {
		wait, cancel := context.WithTimeout(ctx, listenPing)
		n, err := conn.WaitForNotification(wait)
		idle := wait.Err() != nil
		cancel()
		switch {
		case err == nil:
			message(n.Payload)
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case !idle:
			return c.store.failed(op, "", err, reading)
		}
		if err := c.ping(ctx, conn); err != nil {
			return c.store.failed(op, "", err, reading)
		}
	}
}

// ping checks that a connection still works.
func (c *Client) ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := c.store.limited(ctx)
	defer cancel()
	return conn.Ping(ctx)
}

// Where returns the address of the server, for messages.
func (c *Client) Where() string { return c.store.settings.where() }

// Close closes the connections.
func (c *Client) Close() error {
	c.store.gate.Close()
	c.store.pool.Close()
	return nil
}
