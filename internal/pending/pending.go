// Package pending limits the connections of a listener that are accepted but not authenticated yet. There are limits
// for the total number and for each source address. If there are too many connections, the package closes the oldest.
// The caller does the authentication. The package owns the counts of these connections, and the choice of the
// connection to close.
//
// The package has no goroutines. Each pending connection has a timer, which Done and Close stop.
package pending

import (
	"container/list"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// The default limits of a Set.
const (
	DefaultTotal     = 512
	DefaultPerSource = 128
	DefaultFirstByte = 2 * time.Second
)

// Limits are the limits of a Set. Zero fields take the defaults.
type Limits struct {
	Total     int           // pending connections
	PerSource int           // pending connections per source address: an IPv4 address, or the /64 of an IPv6 address
	FirstByte time.Duration // a connection that has sent nothing for this long is closed
}

func (l Limits) withDefaults() Limits {
	if l.Total <= 0 {
		l.Total = DefaultTotal
	}
	if l.PerSource <= 0 {
		l.PerSource = DefaultPerSource
	}
	if l.FirstByte <= 0 {
		l.FirstByte = DefaultFirstByte
	}
	return l
}

// Set has the pending connections of one listener. There are two limits:
//
//   - If one source address has too many connections, the Set closes the oldest connection of this address. So one
//     address cannot displace the connections of others.
//   - If there are too many connections in total, the Set closes the oldest of all. It is probably not a connection of
//     a node, because the handshake of a node takes milliseconds.
//
// A Set is safe for concurrent use.
type Set struct {
	limits Limits

	mu      sync.Mutex // guards the fields below and the fields of every Conn
	all     list.List  // of *Conn, oldest first
	sources map[netip.Addr]*list.List
	closed  bool
}

// New returns an empty Set.
func New(l Limits) *Set {
	return &Set{limits: l.withDefaults(), sources: map[netip.Addr]*list.List{}}
}

// Cut is why a Set closed a connection.
type Cut uint8

// The reasons.
const (
	NotCut    Cut = iota
	TooMany       // it was the oldest connection when the listener had too many
	TooManyOf     // it was the oldest connection of its source address when the address had too many
	Silent        // the connection sent nothing
	Closed        // the Set was closed
)

// Conn is one pending connection. The Set closes it if Read has returned no byte within Limits.FirstByte.
type Conn struct {
	net.Conn
	set       *Set
	source    netip.Addr
	inAll     *list.Element // nil = no longer pending
	inSource  *list.Element
	firstByte *time.Timer
	heard     sync.Once
	cut       Cut
}

// Add adds a connection, which is pending until Done is called on the result. If there are now too many pending
// connections, Add closes one of them. If the Set is closed, Add closes the new connection.
func (s *Set) Add(c net.Conn) *Conn {
	p := &Conn{Conn: c, set: s, source: sourceOf(c.RemoteAddr())}
	if surplus := s.add(p); surplus != nil {
		_ = surplus.Conn.Close() // the handshake of the connection fails
	}
	return p
}

// add counts p, and returns the connection to close if there is one too many.
func (s *Set) add(p *Conn) (surplus *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.sources[p.source]
	if own == nil {
		own = list.New()
		s.sources[p.source] = own
	}
	p.inAll, p.inSource = s.all.PushBack(p), own.PushBack(p)
	p.firstByte = time.AfterFunc(s.limits.FirstByte, func() { s.end(p, Silent) })
	cut := NotCut
	switch {
	case s.closed:
		surplus, cut = p, Closed
	case own.Len() > s.limits.PerSource:
		surplus, cut = own.Front().Value.(*Conn), TooManyOf
	case s.all.Len() > s.limits.Total:
		surplus, cut = s.all.Front().Value.(*Conn), TooMany
	default:
		return nil
	}
	s.remove(surplus, cut)
	return surplus
}

// remove removes a connection from the Set. It returns false if the connection was already removed. The caller holds
// s.mu.
func (s *Set) remove(p *Conn, why Cut) bool {
	if p.inAll == nil {
		return false
	}
	own := s.sources[p.source]
	s.all.Remove(p.inAll)
	own.Remove(p.inSource)
	if own.Len() == 0 {
		delete(s.sources, p.source)
	}
	p.inAll, p.inSource, p.cut = nil, nil, why
	p.firstByte.Stop()
	return true
}

// end closes a connection, if it is still pending.
func (s *Set) end(p *Conn, why Cut) {
	s.mu.Lock()
	pending := s.remove(p, why)
	s.mu.Unlock()
	if pending {
		_ = p.Conn.Close() // the handshake of the connection fails
	}
}

// Read reads from the connection. The first byte stops the timer of FirstByte.
func (p *Conn) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if n > 0 {
		p.heard.Do(func() { p.firstByte.Stop() })
	}
	return n, err
}

// Done removes the connection from the Set. If the Set had already closed the connection, Done returns the reason.
// Otherwise it returns NotCut. Done is idempotent.
func (p *Conn) Done() Cut {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	p.set.remove(p, NotCut)
	return p.cut
}

// Close closes every pending connection, and each one that is added later.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	var open []*Conn
	for e := s.all.Front(); e != nil; e = e.Next() {
		open = append(open, e.Value.(*Conn))
	}
	s.mu.Unlock()
	for _, p := range open {
		s.end(p, Closed)
	}
}

// Explain returns the reason as a text, or "" for NotCut and Closed.
func (s *Set) Explain(why Cut) string {
	switch why {
	case TooMany:
		return fmt.Sprintf("%d connections had not finished their handshake, and this was the oldest", s.limits.Total)
	case TooManyOf:
		return fmt.Sprintf("%d connections from its address had not finished their handshake, and this was the "+
			"oldest", s.limits.PerSource)
	case Silent:
		return fmt.Sprintf("it sent nothing for %s", s.limits.FirstByte)
	default:
		return ""
	}
}

// sourceOf returns the source address for the limit per source. For IPv4 it is the whole address. For IPv6 it is the
// /64 prefix, because a host usually controls a whole /64.
func sourceOf(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return ip
}
