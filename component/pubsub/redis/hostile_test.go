package redis_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/redis"
	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// text returns s as a reply of Redis.
func text(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

func list(elements ...string) string {
	return fmt.Sprintf("*%d\r\n%s", len(elements), strings.Join(elements, ""))
}

// stream returns the reply to XREADGROUP with entries of one topic.
func stream(topic string, entries ...string) string { return list(list(text(topic), list(entries...))) }

func entry(id string, fields ...string) string {
	all := make([]string, len(fields))
	for i := range fields {
		all[i] = text(fields[i])
	}
	return list(text(id), list(all...))
}

// joined subscribes to the topic orders, and repeats this after an error. On a busy machine, the first answers may
// take longer than the short readTimeout of a test.
func joined(t *testing.T, b *redis.Broker) (s pubsub.Subscription) {
	t.Helper()
	testutil.Eventually(t, func() (err error) {
		s, err = b.Subscribe(t.Context(), pubsub.SubscribeRequest{Topic: "orders", Group: "shop"})
		return err
	})
	return s
}

// A hostile server cannot make the broker allocate much memory. It can end neither the process nor the group. A
// message in a wrong form is neither delivered nor acknowledged.
func TestBroker_HostileReplies(t *testing.T) {
	const most = 32 << 20 // bytes that the calls of a case may allocate
	many := make([]string, 200)
	for i := range many {
		many[i] = entry(strconv.Itoa(i+1)+"-0", "data", "x")
	}
	for name, c := range map[string]struct {
		answer  string
		endless bool
	}{
		"huge string":        {"$2000000000\r\n", false},
		"largest string":     {"$67108864\r\n", false}, // the bytes of the string never come
		"huge array":         {"*2000000000\r\n", false},
		"array of no sense":  {"*9223372036854775807\r\n", false},
		"map":                {"%1\r\n" + text("orders") + list(entry("1-0", "data", "x")), false},
		"map of no sense":    {"%4611686018427387905\r\n", false},
		"line without end":   {strings.Repeat("+", 64<<10), true},
		"nested arrays":      {strings.Repeat("*1\r\n", 16<<10), true},
		"many replies":       {strings.Repeat("+OK\r\n", 16<<10), true},
		"number":             {":9223372036854775807\r\n", false},
		"text":               {text("x"), false},
		"no stream":          {"*0\r\n", false},
		"other topic":        {stream("other", entry("1-0", "data", "x")), false},
		"two topics":         {list(list(text("orders"), list()), list(text("orders"), list())), false},
		"too many":           {stream("orders", many...), false},
		"id of no sense":     {stream("orders", entry("x", "data", "x")), false},
		"id that overflows":  {stream("orders", entry("18446744073709551616-0", "data", "x")), false},
		"another id":         {stream("orders", entry("01-0", "data", "x")), false},
		"odd fields":         {stream("orders", entry("1-0", "data")), false},
		"fields of numbers":  {stream("orders", list(text("1-0"), list(":1\r\n", ":2\r\n"))), false},
		"null fields":        {stream("orders", list(text("1-0"), "*-1\r\n")), false},
		"entry of one":       {stream("orders", list(text("1-0"))), false},
		"pending of no id":   {list(list(text("x"), text("shop"), ":1\r\n", ":1\r\n")), false},
		"negative attempts":  {list(list(text("1-0"), text("shop"), ":99999999\r\n", ":-5\r\n")), false},
		"idle of no sense":   {list(list(text("1-0"), text("shop"), text("long"), ":1\r\n")), false},
		"error":              {"-ERR " + strings.Repeat("x", 1000) + "\r\n", false},
		"error about groups": {"-NOGROUP\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			h := redistest.StartHostile(t, map[string]string{"xadd": c.answer, "xreadgroup": c.answer,
				"xclaim": c.answer, "xrange": c.answer, "xgroup": c.answer}, c.endless)
			b := open(t, "redisHost", h.Address, "readTimeout", "100ms", "redisMaxRetries", "-1", "processingTimeout",
				"40ms", "redeliverInterval", "10ms")
			statetest.Bounded(t, most, func() {
				_, err := b.Publish(t.Context(), pubsub.PublishRequest{Topic: "orders",
					Messages: []pubsub.Message{message("1")}})
				if err == nil || fault.CodeOf(err) == "" {
					t.Errorf("Publish: %v", err)
				}
				s := joined(t, b)
				defer s.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				if d, err := s.Receive(ctx, 1); err == nil || fault.CodeOf(err) == "" {
					t.Errorf("received %+v, %v", d, err)
				}
			})
			if n := h.Called("xack"); n != 0 {
				t.Errorf("%d acknowledgements were sent", n)
			}
		})
	}
}

// The searches for idle messages get replies of a wrong form. No message is acknowledged.
func TestReceive_HostilePending(t *testing.T) {
	idle := list(list(text("5-0"), text("shop"), ":99999999\r\n", ":1\r\n"))
	for name, answers := range map[string]map[string]string{
		"pending: text":     {"xpending": text("x")},
		"pending: short":    {"xpending": list(list(text("5-0")))},
		"pending: negative": {"xpending": list(list(text("5-0"), text("shop"), ":99999999\r\n", ":-1\r\n"))},
		"claim: another":    {"xpending": idle, "xclaim": list(text("6-0"))},
		"claim: two":        {"xpending": idle, "xclaim": list(text("5-0"), text("6-0"))},
		"claim: text":       {"xpending": idle, "xclaim": text("x")},
		"range: another":    {"xpending": idle, "xclaim": list(text("5-0")), "xrange": list(entry("6-0", "data", "x"))},
		"range: two": {"xpending": idle, "xclaim": list(text("5-0")),
			"xrange": list(entry("5-0", "data", "x"), entry("6-0", "data", "x"))},
		"range: huge": {"xpending": idle, "xclaim": list(text("5-0")), "xrange": "*1\r\n*2\r\n$3\r\n5-0\r\n" +
			"*2\r\n$4\r\ndata\r\n$2000000000\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			h := redistest.StartHostile(t, answers, false)
			b := open(t, "redisHost", h.Address, "readTimeout", "100ms", "redisMaxRetries", "-1", "processingTimeout",
				"40ms", "redeliverInterval", "10ms")
			s := joined(t, b)
			defer s.Close()
			last := "xpending"
			for _, name := range []string{"xclaim", "xrange"} {
				if answers[name] != "" {
					last = name
				}
			}
			testutil.Eventually(t, func() error {
				if n := h.Called(last); n < 5 {
					return fmt.Errorf("%d calls of %s", n, last)
				}
				return nil
			})
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if d, err := s.Receive(ctx, 1); !fault.Is(err, fault.Timeout) {
				t.Errorf("received %+v, %v", d, err)
			}
			if n := h.Called("xack"); n != 0 {
				t.Errorf("%d acknowledgements were sent", n)
			}
		})
	}
}

// After a reply that is too large, the next request asks for only one message.
func TestReceive_ReplyIsTooLarge(t *testing.T) {
	h := redistest.StartHostile(t, map[string]string{"xreadgroup": "*1\r\n*2\r\n$6\r\norders\r\n*9\r\n*2\r\n" +
		"$3\r\n1-0\r\n*2\r\n$4\r\ndata\r\n$2000000000\r\n"}, false)
	b := open(t, "redisHost", h.Address, "redisMaxRetries", "-1")
	s, err := b.Subscribe(t.Context(), pubsub.SubscribeRequest{Topic: "orders", Group: "shop"})
	testutil.Must(t, err)
	defer s.Close()
	testutil.Eventually(t, func() error {
		if words := h.Last("xreadgroup"); len(words) < 6 || words[5] != "1" { // COUNT
			return fmt.Errorf("the newest read is %v", words)
		}
		return nil
	})
}

// A server sends a message twice. The member receives the message once.
func TestReceive_MessageTwice(t *testing.T) {
	one := entry("1-0", "data", "x")
	h := redistest.StartHostile(t, map[string]string{"xreadgroup": stream("orders", one, one)}, false)
	b := open(t, "redisHost", h.Address)
	s := subscribe(t, b, "orders", "shop")
	receive(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if d, err := s.Receive(ctx, 1); !fault.Is(err, fault.Timeout) {
		t.Errorf("received %+v, %v", d, err)
	}
}
