// Package ratelimit implements the middleware middleware.http.ratelimit, which limits the request rate of each client
// address.
//
// It owns one token bucket per address, and removes a bucket after an hour without requests. It has no goroutines.
package ratelimit

import (
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/middleware"
	"github.com/quorate/quorate/internal/fault"
)

// Type is the component type.
const Type = "middleware.http.ratelimit"

const metadataRate = "maxRequestsPerSecond"

// Fields declares the metadata.
func Fields() []component.Field {
	return []component.Field{{Name: metadataRate, Default: "100", Check: func(text string) error {
		_, err := parse(text)
		return err
	}}}
}

func parse(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0 && v <= 1e9) {
		return 0, fault.New(fault.Invalid, "ratelimit.Open", "is not a number of requests above zero")
	}
	return v, nil
}

// Limiter limits the requests of each address. It is safe for concurrent use.
type Limiter struct {
	perSecond float64
	now       func() time.Time

	mu      sync.Mutex
	clients map[string]*client
	swept   time.Time
}

type client struct {
	tokens *rate.Limiter
	seen   time.Time
}

// idle is how long an address must send no request before its token bucket is removed. At rates of at least one
// request per hour, the bucket is full again by then, so its removal has no effect.
const idle = time.Hour

// Open makes the middleware from its metadata. now returns the time; nil = time.Now.
func Open(v component.Values, now func() time.Time) (*Limiter, error) {
	perSecond, err := parse(v.Text(metadataRate))
	if now == nil {
		now = time.Now
	}
	return &Limiter{perSecond: perSecond, now: now, clients: map[string]*client{}, swept: now()}, err
}

// Filter implements middleware.Filter.
func (l *Limiter) Filter(r *http.Request) error {
	if l.allow(addressOf(r)) {
		return nil
	}
	return &middleware.Refusal{
		Status: http.StatusTooManyRequests, Code: "ERR_TOO_MANY_REQUESTS",
		Message: "too many requests: the limit of " + metadataRate + " is " +
			strconv.FormatFloat(l.perSecond, 'g', -1, 64) + " in a second for each client address",
		Header: http.Header{"Retry-After": {"1"},
			"X-Rate-Limit-Limit": {strconv.FormatFloat(l.perSecond, 'f', 2, 64)}},
	}
}

func (l *Limiter) allow(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if now.Sub(l.swept) > idle {
		for name, c := range l.clients {
			if now.Sub(c.seen) > idle {
				delete(l.clients, name)
			}
		}
		l.swept = now
	}
	c := l.clients[address]
	if c == nil {
		c = &client{tokens: rate.NewLimiter(rate.Limit(l.perSecond), int(max(1, math.Ceil(l.perSecond))))}
		l.clients[address] = c
	}
	c.seen = now
	return c.tokens.AllowN(now, 1)
}

// addressOf returns the address of the client's connection. It ignores headers such as X-Forwarded-For, because a
// client can set them to any address.
func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
