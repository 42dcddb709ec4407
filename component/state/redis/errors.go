package redis

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/frames"
)

// given returns fault.Timeout if ctx has ended.
func given(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return &fault.Error{Code: fault.Timeout, Op: op, Msg: "the request was given up", Err: err}
	}
	return nil
}

// execute sends the commands of a pipeline. Each failed command then contains its error. If the library sends nothing,
// for example because Redis refused the password, execute sets the error of the pipeline in all commands.
func execute(ctx context.Context, pipe goredis.Pipeliner) {
	commands, err := pipe.Exec(ctx)
	if err == nil || slices.ContainsFunc(commands, func(c goredis.Cmder) bool { return c.Err() != nil }) {
		return
	}
	for _, c := range commands {
		c.SetErr(err)
	}
}

func isClosed(err error) bool { return errors.Is(err, goredis.ErrClosed) }

// answers maps the first word of an error reply of Redis to a fault. Redis has not executed a command to which it
// replies with one of these errors.
func answers() map[string]fault.Error {
	return map[string]fault.Error{
		"NOAUTH": {Code: fault.Denied, Msg: "Redis requires a password",
			Hint: "set redisPassword, and redisUsername for an ACL user"},
		"WRONGPASS": {Code: fault.Denied, Msg: "Redis refused the user or the password",
			Hint: "correct redisUsername and redisPassword"},
		"NOPERM": {Code: fault.Denied, Msg: "the user may not do this in Redis",
			Hint: "see docs/components/state.redis.md for the commands that it needs"},
		"OOM": {Code: fault.ReadOnly, Msg: "Redis has no memory left for values",
			Hint: "raise maxmemory of Redis, set TTLs, or delete keys"},
		"MISCONF": {Code: fault.ReadOnly, Msg: "Redis refuses writes, because it cannot save its data",
			Hint: "look at the disk and the log of Redis"},
		"READONLY": {Code: fault.Unavailable, Msg: "the Redis server is a replica now",
			Hint: "wait for the failover, or give the address of the master"},
		"LOADING":    {Code: fault.Unavailable, Msg: "Redis is loading its data", Hint: "wait until it is ready"},
		"MASTERDOWN": {Code: fault.Unavailable, Msg: "the replica has lost its master", Hint: "look at the master"},
		"CLUSTERDOWN": {Code: fault.Unavailable, Msg: "the Redis Cluster is down",
			Hint: "look at its masters: each slot needs one"},
		"TRYAGAIN": {Code: fault.Unavailable, Msg: "the slot of the keys is moving to another server",
			Hint: "try again when it has moved"},
		"NOREPLICAS": {Code: fault.Unavailable, Msg: "Redis has too few replicas for a write",
			Hint: "look at min-replicas-to-write and the replicas"},
		"BUSY": {Code: fault.Overloaded, Msg: "Redis is busy with a script", Hint: "look at what runs in Redis"},
		"MOVED": {Code: fault.Unavailable, Msg: "the key is on another server of a Redis Cluster",
			Hint: `set redisType: "cluster"`},
		"ASK": {Code: fault.Unavailable, Msg: "the key is moving to another server of a Redis Cluster",
			Hint: `set redisType: "cluster"`},
		"CROSSSLOT": {Code: fault.Invalid, Msg: "the keys are in several slots of the Redis Cluster",
			Hint: "send them one by one"},
		"WRONGTYPE": {Code: fault.Invalid, Msg: "a key holds another Redis type than a hash",
			Hint: "delete it in Redis, or use another key"},
		"NOPROTO": {Code: fault.Invalid, Msg: "the server does not speak the protocol of Redis",
			Hint: "check redisHost"},
	}
}

// refusal returns the fault for an error reply of Redis. ok is false if err is not an error reply.
func refusal(err error) (e fault.Error, ok bool) {
	var answer goredis.Error
	if !errors.As(err, &answer) || errors.Is(err, goredis.Nil) {
		return e, false
	}
	text := answer.Error()
	word, _, _ := strings.Cut(text, " ")
	if e, ok := answers()[word]; ok {
		return e, true
	}
	switch {
	case strings.Contains(text, partly):
		return fault.Error{Code: fault.Indeterminate, Msg: "Redis executed only a part of the write",
			Hint: "see docs/components/state.redis.md for the commands that the user needs, and read the key"}, true
	case strings.Contains(text, "WRONGTYPE"): // the error of a command in a script
		return answers()["WRONGTYPE"], true
	case strings.Contains(text, "OOM"):
		return answers()["OOM"], true
	case strings.Contains(text, "READONLY"):
		return answers()["READONLY"], true
	case strings.Contains(text, "NOPERM"), strings.Contains(text, "ACL failure in script"),
		strings.Contains(text, "The user executing the script"):
		return answers()["NOPERM"], true
	case strings.Contains(text, "max number of clients"):
		return fault.Error{Code: fault.Overloaded, Msg: "Redis has no connection left",
			Hint: "raise maxclients of Redis, or lower poolSize"}, true
	case strings.Contains(text, "invalid password"), strings.Contains(text, "without any password"),
		strings.Contains(text, "AUTH"):
		return answers()["WRONGPASS"], true
	case strings.Contains(text, "cluster support disabled"):
		return fault.Error{Code: fault.Invalid, Msg: "the server is not part of a Redis Cluster",
			Hint: `set redisType: "node"`}, true
	}
	return fault.Error{Code: fault.Internal, Msg: "Redis answered with an error"}, true
}

// unsent reports whether err shows that the command was not sent.
func unsent(err error) bool {
	var network *net.OpError
	var header tls.RecordHeaderError
	var certificate *tls.CertificateVerificationError
	var resolve *net.DNSError
	return errors.As(err, &network) && network.Op == "dial" || errors.As(err, &header) ||
		errors.As(err, &certificate) || errors.As(err, &resolve) || isClosed(err) ||
		errors.Is(err, goredis.ErrPoolTimeout) || errors.Is(err, goredis.ErrPoolExhausted) ||
		strings.HasPrefix(err.Error(), "redis: all sentinels") ||
		strings.HasPrefix(err.Error(), "redis: cluster has no nodes")
}

// again reports whether a write was certainly not executed, and may succeed if it is repeated.
func again(err error) bool {
	if isClosed(err) {
		return false
	}
	if e, ok := refusal(err); ok {
		return e.Code == fault.Unavailable || e.Code == fault.Overloaded
	}
	return unsent(err)
}

// failed converts an error of the client to a fault. Set write for a command that changes data. The code is
// fault.Indeterminate if Redis may have executed such a command.
func (s *Store) failed(op, key string, err error, write bool) error {
	e, answered := refusal(err)
	address, _ := redirected(err)
	var refused *frames.Error
	switch {
	case address != "" && s.settings.kind == cluster:
		e.Msg, e.Hint = "the slot of the key is moving to "+address, "try again when it has moved"
	case answered:
	case isClosed(err):
		return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "the store is closed"}
	case errors.Is(err, goredis.ErrPoolTimeout):
		e = fault.Error{Code: fault.Overloaded, Msg: "all connections to Redis are in use", Hint: "raise poolSize"}
	case unsent(err):
		return s.unreachable(op, err)
	case errors.As(err, new(unconfirmed)):
		e = fault.Error{Code: fault.Indeterminate, Msg: "the write may be lost if the master of Redis fails",
			Hint: "look at the replicas, or lower replicas"}
	case errors.As(err, &refused) && !write:
		return outside.Unreadable(op, key, "Redis at "+s.settings.where(), refused)
	case write:
		e = fault.Error{Code: fault.Indeterminate, Msg: "the connection to Redis at " + s.settings.where() +
			" ended before the answer; the write may have been applied", Hint: "read the key before you write it again"}
	case timedOut(err):
		e = fault.Error{Code: fault.Timeout, Msg: "Redis at " + s.settings.where() + " did not answer in time"}
	default:
		e = fault.Error{Code: fault.Unavailable, Msg: "the connection to Redis at " + s.settings.where() + " was lost"}
	}
	e.Op, e.Key, e.Err = op, key, err
	return &e
}

func timedOut(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.As(err, &network) && network.Timeout()
}

// unreachable returns the error for a server to which no connection can be made. err is the cause.
func (s *Store) unreachable(op string, err error) error {
	e := &fault.Error{Code: fault.Unavailable, Op: op, Msg: "no Redis can be reached at " + s.settings.where(),
		Hint: "check redisHost, the network, and that Redis runs", Err: err}
	var authority x509.UnknownAuthorityError
	var header tls.RecordHeaderError
	var host x509.HostnameError
	switch {
	case errors.As(err, &host):
		e.Msg = "the certificate of Redis at " + s.settings.where() + " is for another host"
		e.Hint = "give in redisHost a name that is in it"
	case errors.As(err, &authority):
		e.Msg = "the certificate of Redis at " + s.settings.where() + " is not trusted"
		e.Hint = "give its authority with caCert"
	case errors.As(err, &header):
		e.Msg, e.Hint = "the server at "+s.settings.where()+" does not speak TLS", "omit enableTLS"
	case s.settings.tls != nil && timedOut(err): // a server without TLS waits for the rest of a command
		e.Hint += "; omit enableTLS if it does not use TLS"
	case s.settings.kind == sentinel:
		e.Hint = "check redisHost, which has the sentinels, sentinelMasterName, and the network"
	}
	return e
}
