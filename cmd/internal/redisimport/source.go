package redisimport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/quorate/quorate/internal/fault"
)

// Server says how a Redis server is reached.
type Server struct {
	Address  string // host:port
	Username string // empty = the default user
	Password string // empty = none is asked for
	DB       int
	TLS      *tls.Config   // nil = plain TCP
	Timeout  time.Duration // of connecting and of each answer; required
}

const op = "redisimport.Run"

// Open connects and logs in. ctx bounds the connecting; when it ends later, the
// connection is closed. Errors are *fault.Error: denied for credentials, unavailable for
// a server that does not answer, invalid for one that is no Redis.
func (s Server) Open(ctx context.Context) (*Conn, error) {
	// redigo logs in while it dials, and its errors do not tell which step failed: so
	// these steps are done here. Its connections may not be closed while they are used,
	// those of the network below may.
	var wire net.Conn
	dial := func(ctx context.Context, network, address string) (_ net.Conn, err error) {
		wire, err = (&net.Dialer{Timeout: s.Timeout}).DialContext(ctx, network, address)
		return wire, err
	}
	raw, err := redis.DialContext(ctx, "tcp", s.Address, redis.DialContextFunc(dial), redis.DialReadTimeout(s.Timeout),
		redis.DialWriteTimeout(s.Timeout), redis.DialTLSHandshakeTimeout(s.Timeout), redis.DialUseTLS(s.TLS != nil), redis.DialTLSConfig(s.TLS))
	if err != nil {
		return nil, s.unreachable(err)
	}
	c := &Conn{server: s, raw: raw}
	c.release = context.AfterFunc(ctx, func() { _ = wire.Close() })
	for _, command := range s.greeting() {
		if _, err := raw.Do(command[0].(string), command[1:]...); err != nil {
			c.Close()
			return nil, s.failed(err)
		}
	}
	return c, nil
}

// greeting are the commands that begin a connection.
func (s Server) greeting() (out [][]any) {
	switch {
	case s.Username != "":
		out = append(out, []any{"AUTH", s.Username, s.Password})
	case s.Password != "":
		out = append(out, []any{"AUTH", s.Password})
	}
	if s.DB != 0 {
		out = append(out, []any{"SELECT", s.DB})
	}
	return append(out, []any{"PING"})
}

func (s Server) unreachable(err error) error {
	e := &fault.Error{Code: fault.Unavailable, Op: op, Msg: "no Redis answers at " + s.Address, Hint: "say where it is with --redis-address", Err: err}
	var authority x509.UnknownAuthorityError
	var header tls.RecordHeaderError
	switch {
	case errors.As(err, &authority):
		e.Msg, e.Hint = "the certificate of the Redis server at "+s.Address+" is not trusted", "name the authority's file with --redis-ca-file"
	case errors.As(err, &header):
		e.Msg, e.Hint = "what answers at "+s.Address+" does not speak TLS", "leave --redis-tls away"
	case s.TLS != nil: // some close the connection without a word
		e.Hint += ", and leave --redis-tls away if it does not speak TLS"
	}
	return e
}

// failed words what went wrong on a connection.
func (s Server) failed(err error) error {
	var answer redis.Error
	var network net.Error
	switch {
	case errors.As(err, &answer):
		return s.refused(string(answer))
	case errors.As(err, &network):
		return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "the connection to Redis at " + s.Address + " was lost", Hint: "run the same command again: it goes on where it was", Err: err}
	case strings.HasPrefix(err.Error(), "redigo: "): // the library has no type for it
		return &fault.Error{Code: fault.Invalid, Op: op, Msg: "what answers at " + s.Address + " is no Redis", Hint: "check --redis-address, and --redis-tls if the server wants TLS"}
	}
	return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "the connection to Redis at " + s.Address + " ended", Hint: "run the same command again: it goes on where it was; a server that wants TLS needs --redis-tls", Err: err}
}

// refused words an error that Redis answered. Its first word is the kind.
func (s Server) refused(text string) error {
	e := &fault.Error{Code: fault.Internal, Op: op, Msg: "Redis at " + s.Address + " answered: " + text}
	kind, _, _ := strings.Cut(text, " ")
	switch {
	case kind == "NOAUTH":
		e.Code, e.Msg, e.Hint = fault.Denied, "Redis at "+s.Address+" wants a password", "put it into REDIS_PASSWORD, or name its file with --redis-password-file"
	case kind == "WRONGPASS", strings.Contains(text, "invalid password"), strings.Contains(text, "without any password"):
		e.Code, e.Hint = fault.Denied, "check --redis-username, REDIS_PASSWORD and --redis-password-file"
	case kind == "NOPERM":
		e.Code, e.Hint = fault.Denied, "the user needs the commands PING, SELECT, DBSIZE, SCAN, TYPE, PTTL, HSTRLEN, HMGET and JSON.GET on all keys"
	case kind == "LOADING", kind == "MASTERDOWN":
		e.Code, e.Hint = fault.Unavailable, "try again when the server is ready"
	}
	return e
}

// Conn is one connection. It is for one goroutine at a time.
type Conn struct {
	server  Server
	raw     redis.Conn
	release func() bool
}

// Close ends the connection. It may be called twice.
func (c *Conn) Close() {
	c.release()
	_ = c.raw.Close() // nothing was written
}

// Size is the number of keys of the database.
func (c *Conn) Size() (int64, error) {
	n, err := redis.Int64(c.raw.Do("DBSIZE"))
	if err != nil {
		return 0, c.server.failed(err)
	}
	return n, nil
}

// scan returns one page of keys and the cursor of the next; that of the first and of the
// one after the last is "0". A key that stays is on some page; any may be on several.
func (c *Conn) scan(cursor string, count int) (next string, keys []string, err error) {
	page, err := redis.Values(c.raw.Do("SCAN", cursor, "COUNT", count))
	if err == nil {
		_, err = redis.Scan(page, &next, &keys)
	}
	if err != nil {
		return "", nil, c.server.failed(err)
	}
	return next, keys, nil
}

// The types of keys that may hold state, as Redis names them.
const (
	typeHash = "hash"
	typeJSON = "ReJSON-RL" // of the module RedisJSON
	typeNone = "none"      // the key has gone
)

// described is what is known of a key before its value is read.
type described struct {
	key  key
	kind string
	ttl  time.Duration // 0 = does not expire
	size int64         // of the value in bytes; a guess for documents
}

// describe looks at keys in one round trip.
func (c *Conn) describe(keys []key) ([]described, error) {
	for _, k := range keys {
		_ = c.raw.Send("TYPE", k.stored) // Flush tells of errors
		_ = c.raw.Send("PTTL", k.stored)
		_ = c.raw.Send("HSTRLEN", k.stored, fieldData)
	}
	if err := c.raw.Flush(); err != nil {
		return nil, c.server.failed(err)
	}
	out := make([]described, len(keys))
	for i, k := range keys {
		out[i].key = k
		if err := c.receive(&out[i]); err != nil {
			return nil, c.server.failed(err)
		}
	}
	return out, nil
}

func (c *Conn) receive(d *described) (err error) {
	if d.kind, err = redis.String(c.raw.Receive()); err != nil {
		return err
	}
	left, err := redis.Int64(c.raw.Receive())
	if err != nil {
		return err
	}
	switch {
	case left == -2:
		d.kind = typeNone
	case left >= 0:
		d.ttl = max(time.Duration(left)*time.Millisecond, 1)
	}
	if d.size, err = redis.Int64(c.raw.Receive()); d.kind != typeHash {
		d.size, err = documentGuess, nil // HSTRLEN is wrong for the type
	}
	return err
}

// documentGuess stands for the size of a document, which Redis does not tell cheaply.
const documentGuess = 16 << 10

// The fields of a hash, and of a document, in which state is kept.
const (
	fieldData    = "data"
	fieldVersion = "version"
)

// value is what a key holds.
type value struct {
	data []byte // nil = the key has gone, or holds no state
	err  error  // Redis could not give this one
}

// values reads keys in one round trip.
func (c *Conn) values(keys []described) ([]value, error) {
	for _, d := range keys {
		if d.kind == typeJSON {
			_ = c.raw.Send("JSON.GET", d.key.stored) // Flush tells of errors
		} else {
			_ = c.raw.Send("HMGET", d.key.stored, fieldData)
		}
	}
	if err := c.raw.Flush(); err != nil {
		return nil, c.server.failed(err)
	}
	out := make([]value, len(keys))
	for i, d := range keys {
		var err error
		if out[i].data, err = c.one(d.kind); err == nil || errors.Is(err, redis.ErrNil) {
			continue
		}
		var answer redis.Error
		if !errors.As(err, &answer) && !fault.Is(err, fault.Invalid) {
			return nil, c.server.failed(err)
		}
		out[i].err = err
	}
	return out, nil
}

func (c *Conn) one(kind string) ([]byte, error) {
	if kind == typeJSON {
		text, err := redis.Bytes(c.raw.Receive())
		if err != nil {
			return nil, err
		}
		return documentData(text)
	}
	fields, err := redis.ByteSlices(c.raw.Receive())
	if err != nil || len(fields) != 1 { // one was asked for
		return nil, err
	}
	return fields[0], nil
}
