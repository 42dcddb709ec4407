// Package ratelimit implements the middleware middleware.http.ratelimit, which limits the request rate of each client
// address.
//
// The package owns a token bucket for each address, for at most 10,000 addresses. It removes buckets that are full
// again, because a new bucket is also full. The package has no goroutines.
package ratelimit

import (
	"container/list"
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
	burst     int
	refill    time.Duration // time after which a bucket without requests is full
	now       func() time.Time

	mu      sync.Mutex
	clients map[string]*list.Element
	order   list.List // of *client, least recently used first
}

type client struct {
	address string
	tokens  *rate.Limiter
	seen    time.Time
}

// maxClients is the maximum number of token buckets. If there are more addresses, the least recently used bucket is
// removed, and its address gets a new, full bucket with the next request.
const maxClients = 10_000

// Open makes the middleware from its metadata. now returns the time; nil = time.Now.
func Open(v component.Values, now func() time.Time) (*Limiter, error) {
	perSecond, err := parse(v.Text(metadataRate))
	if err != nil {
		return nil, err
	}
	if now == nil {
		now = time.Now
	}
	burst := max(1, math.Ceil(perSecond))
	refill := time.Duration(min(burst/perSecond*float64(time.Second), math.MaxInt64/2))
	return &Limiter{perSecond: perSecond, burst: int(burst), refill: refill, now: now,
		clients: map[string]*list.Element{}}, nil
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
	e := l.clients[address]
	if e == nil {
		e = l.order.PushBack(&client{address: address, tokens: rate.NewLimiter(rate.Limit(l.perSecond), l.burst)})
		l.clients[address] = e
	}
	c := e.Value.(*client)
	c.seen = now
	l.order.MoveToBack(e)
	l.forget(now)
	return c.tokens.AllowN(now, 1)
}

// forget removes buckets that are full again. If more than maxClients buckets remain, it also removes the least
// recently used ones. The caller holds the mutex.
func (l *Limiter) forget(now time.Time) {
	for e := l.order.Front(); e != nil; e = l.order.Front() {
		c := e.Value.(*client)
		if len(l.clients) <= maxClients && now.Sub(c.seen) <= l.refill {
			return
		}
		l.order.Remove(e)
		delete(l.clients, c.address)
	}
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
