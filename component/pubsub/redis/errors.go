package redis

import (
	"errors"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/internal/fault"
)

func closedError(op string) error {
	return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "the broker was closed"}
}

func hasPrefix(err error, prefix string) bool { return goredis.HasErrorPrefix(err, prefix) }

// explain returns the error of an operation on a topic with a code, message and hint that fit the topic. It returns an
// unknown error unchanged.
func (b *Broker) explain(op, topic string, err error) error {
	e, ok := fault.As(err)
	if !ok {
		if errors.Is(err, errForm) {
			return &fault.Error{Code: fault.Internal, Op: op, Err: err, Hint: "check redisHost",
				Msg: "the answer of Redis at " + b.client.Where() + " cannot be read"}
		}
		return err
	}
	out := *e
	switch {
	case hasPrefix(err, "WRONGTYPE"):
		out.Msg = "the key of topic " + topic + " holds another Redis type than a stream"
		out.Hint = "delete it in Redis, use another topic, or give the topics a database of their own with redisDB"
	case hasPrefix(err, "OOM"):
		out.Code = fault.Overloaded
		out.Msg = "topic_full: Redis at " + b.client.Where() + " has no memory left for a message of topic " + topic
		out.Hint = "raise maxmemory of Redis, or bound the topics with maxLenApprox or streamTTL"
	case hasPrefix(err, "NOPERM"):
		out.Hint = "see docs/components/pubsub.redis.md for the commands that it needs"
	case b.set.streamTTL > 0 && strings.Contains(err.Error(), "syntax error"):
		out.Code, out.Msg = fault.Invalid, "Redis does not know streamTTL"
		out.Hint = "use Redis 6.2 or newer, or maxLenApprox"
	case e.Code == fault.Indeterminate:
		out.Msg = "the connection to Redis at " + b.client.Where() + " ended before the answer; it may have been done"
		out.Hint = "do it again only if a second message does no harm"
	case e.Code == fault.TooLarge:
		out.Hint = "remove the message from topic " + topic + " in Redis"
	}
	return &out
}

// passes reports whether an error is temporary, which means that a retry may succeed without a change of the topic or
// the settings.
func passes(err error) bool {
	switch fault.CodeOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Overloaded, fault.Indeterminate, fault.TooLarge, fault.ReadOnly:
		return true
	}
	return false
}
