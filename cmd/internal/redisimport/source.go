package redisimport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/quorate/quorate/internal/fault"
)

// Server is the address and the credentials of a Redis server.
type Server struct {
	Address  string // host:port
	Username string // empty = the default user
	Password string // empty = no password
	DB       int
	TLS      *tls.Config   // nil = plain TCP
	Timeout  time.Duration // for connecting and for each response; required
}

const op = "redisimport.Run"

// Open connects to the server and authenticates. When ctx ends, the connection is closed. Errors
// are *fault.Error: Denied for wrong credentials, Unavailable if the server does not answer,
// Invalid if it is not Redis.
func (s Server) Open(ctx context.Context) (*Conn, error) {
	redis.SetLogger(silent{}) // it is one for the process; errors are returned anyway
	c := &Conn{server: s, ctx: ctx, client: redis.NewClient(&redis.Options{
		Addr: s.Address, Username: s.Username, Password: s.Password, DB: s.DB, TLSConfig: s.TLS, Protocol: 2,
		DialTimeout: s.Timeout, ReadTimeout: s.Timeout, WriteTimeout: s.Timeout, ContextTimeoutEnabled: true,
		// One connection is used. A pool of one would dial in the background after an error.
		MaxRetries: -1, DialerRetries: 1, PoolSize: 2, PipelinePoolSize: -1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})}
	c.release = context.AfterFunc(ctx, func() { _ = c.client.Close() })
	if err := c.client.Ping(ctx).Err(); err != nil {
		c.Close()
		return nil, s.refusedToOpen(err)
	}
	return c, nil
}

// silent is a log of the client library without lines.
type silent struct{}

// Printf drops a line.
func (silent) Printf(context.Context, string, ...any) {}

func (s Server) unreachable(err error) error {
	e := &fault.Error{Code: fault.Unavailable, Op: op, Msg: "no Redis answers at " + s.Address,
		Hint: "give its address with --redis-address", Err: err}
	var authority x509.UnknownAuthorityError
	var header tls.RecordHeaderError
	switch {
	case errors.As(err, &authority):
		e.Msg, e.Hint = "the certificate of the Redis server at "+s.Address+" is not trusted",
			"give its CA certificate with --redis-ca-file"
	case errors.As(err, &header):
		e.Msg, e.Hint = "what answers at "+s.Address+" does not speak TLS", "leave --redis-tls away"
	case s.TLS != nil: // some servers close the connection without an error
		e.Hint += ", and omit --redis-tls if it does not use TLS"
	}
	return e
}

// refusedToOpen converts an error of a new connection.
func (s Server) refusedToOpen(err error) error {
	var network *net.OpError
	var header tls.RecordHeaderError
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &network) && network.Op == "dial" || errors.As(err, &header) || errors.As(err, &certificate) ||
		s.TLS != nil && errors.Is(err, io.EOF) {
		return s.unreachable(err)
	}
	return s.failed(err)
}

// failed converts an error of a connection.
func (s Server) failed(err error) error {
	var answer redis.Error
	var network net.Error
	switch {
	case errors.As(err, &answer):
		return s.refused(answer.Error())
	case errors.As(err, &network):
		return &fault.Error{Code: fault.Unavailable, Op: op,
			Msg:  "the connection to Redis at " + s.Address + " was lost",
			Hint: "run the same command again: it continues where it stopped", Err: err}
	case strings.Contains(err.Error(), "redis: "): // the library has no type for what it cannot read
		return &fault.Error{Code: fault.Invalid, Op: op, Msg: "the server at " + s.Address + " is not Redis",
			Hint: "check --redis-address, and --redis-tls if the server needs TLS"}
	}
	return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "the connection to Redis at " + s.Address + " ended",
		Hint: "run the same command again: it continues where it stopped; a server with TLS needs --redis-tls",
		Err:  err}
}

// refused converts an error response of Redis. Its first word is the kind of error.
func (s Server) refused(text string) error {
	e := &fault.Error{Code: fault.Internal, Op: op, Msg: "Redis at " + s.Address + " answered: " + text}
	kind, _, _ := strings.Cut(text, " ")
	switch {
	case kind == "NOAUTH":
		e.Code, e.Msg, e.Hint = fault.Denied, "Redis at "+s.Address+" requires a password",
			"set REDIS_PASSWORD, or give a file with --redis-password-file"
	case kind == "WRONGPASS", strings.Contains(text, "invalid password"),
		strings.Contains(text, "without any password"):
		e.Code, e.Hint = fault.Denied, "check --redis-username, REDIS_PASSWORD and --redis-password-file"
	case kind == "NOPERM":
		e.Code, e.Hint = fault.Denied, "the user needs the commands PING, SELECT, DBSIZE, SCAN, TYPE, PTTL, "+
			"HSTRLEN, HGET and JSON.GET on all keys"
	case kind == "LOADING", kind == "MASTERDOWN":
		e.Code, e.Hint = fault.Unavailable, "try again when the server is ready"
	}
	return e
}

// Conn is one connection. It is not safe for concurrent use.
type Conn struct {
	server  Server
	ctx     context.Context
	client  *redis.Client
	release func() bool
}

// Close closes the connection. It may be called twice.
func (c *Conn) Close() {
	c.release()
	_ = c.client.Close() // there is no unsent data
}

// Size returns the number of keys in the database.
func (c *Conn) Size() (int64, error) {
	n, err := c.client.DBSize(c.ctx).Result()
	if err != nil {
		return 0, c.server.failed(err)
	}
	return n, nil
}

// scan returns one page of keys and the cursor of the next page. The first cursor is 0; the
// cursor after the last page is 0 again. A key that exists during the whole scan is on some page.
// A key may be on several pages.
func (c *Conn) scan(cursor uint64, count int) (next uint64, keys []string, err error) {
	keys, next, err = c.client.Scan(c.ctx, cursor, "", int64(count)).Result()
	if err != nil {
		return 0, nil, c.server.failed(err)
	}
	return next, keys, nil
}

// The types of keys that may contain state, as Redis names them.
const (
	typeHash = "hash"
	typeJSON = "ReJSON-RL" // of the RedisJSON module
	typeNone = "none"      // the key no longer exists
)

// described is what is known about a key before its value is read.
type described struct {
	key  key
	kind string
	ttl  time.Duration // 0 = no expiry
	size int64         // size of the value in bytes; an estimate for documents
}

// describe returns type, TTL and size of keys. It needs one round trip.
func (c *Conn) describe(keys []key) ([]described, error) {
	pipe := c.client.Pipeline()
	kinds, left, sizes := make([]*redis.StatusCmd, len(keys)), make([]*redis.IntCmd, len(keys)),
		make([]*redis.IntCmd, len(keys))
	for i, k := range keys {
		kinds[i] = pipe.Type(c.ctx, k.stored)
		left[i] = redis.NewIntCmd(c.ctx, "pttl", k.stored) // unlike PTTL of the library, it keeps -1 and -2 apart
		_ = pipe.Process(c.ctx, left[i])
		sizes[i] = redis.NewIntCmd(c.ctx, "hstrlen", k.stored, fieldData)
		_ = pipe.Process(c.ctx, sizes[i])
	}
	_, _ = pipe.Exec(c.ctx) // each command has its own error
	out := make([]described, len(keys))
	for i, k := range keys {
		d := &out[i]
		d.key, d.kind, d.size = k, kinds[i].Val(), sizes[i].Val()
		if err := errors.Join(kinds[i].Err(), left[i].Err()); err != nil {
			return nil, c.server.failed(err)
		}
		switch ms := left[i].Val(); {
		case ms == -2:
			d.kind = typeNone
		case ms >= 0:
			d.ttl = max(time.Duration(ms)*time.Millisecond, 1)
		}
		if d.kind != typeHash { // HSTRLEN fails for documents
			d.size = documentGuess
		} else if err := sizes[i].Err(); err != nil {
			return nil, c.server.failed(err)
		}
	}
	return out, nil
}

// documentGuess is the assumed size of a JSON document in bytes. It is used because Redis cannot
// tell the size cheaply.
const documentGuess = 16 << 10

// The fields of a hash, and of a document, that contain state.
const (
	fieldData    = "data"
	fieldVersion = "version"
)

// value is the content of a key.
type value struct {
	data []byte // nil = the key no longer exists, or is not state
	err  error  // the error of Redis for this key
}

// values reads keys in one round trip.
func (c *Conn) values(keys []described) ([]value, error) {
	pipe := c.client.Pipeline()
	commands := make([]*redis.StringCmd, len(keys))
	for i, d := range keys {
		commands[i] = redis.NewStringCmd(c.ctx, "hget", d.key.stored, fieldData)
		if d.kind == typeJSON {
			commands[i] = redis.NewStringCmd(c.ctx, "json.get", d.key.stored)
		}
		_ = pipe.Process(c.ctx, commands[i])
	}
	_, _ = pipe.Exec(c.ctx) // each command has its own error
	out := make([]value, len(keys))
	for i, d := range keys {
		data, err := commands[i].Bytes()
		if err == nil && d.kind == typeJSON {
			data, err = documentData(data)
		}
		var answer redis.Error
		switch {
		case err == nil:
			out[i].data = data
		case errors.Is(err, redis.Nil):
		case errors.As(err, &answer), fault.Is(err, fault.Invalid):
			out[i].err = err
		default:
			return nil, c.server.failed(err)
		}
	}
	return out, nil
}
