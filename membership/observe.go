package membership

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// observed is a transport that records what happened at the last dial for a join: the error of the dial, whether the
// seed sent anything, and whether the seed refused TLS. A dial is for a join if memberlist passes no node name.
type observed struct {
	memberlist.NodeAwareTransport

	mu   sync.Mutex
	last *contact
}

// contact is one attempt to reach a seed.
type contact struct {
	err      error // error of the dial
	answered atomic.Bool
	refused  atomic.Pointer[error] // TLS alert with which the seed ended the stream; nil = none
}

// distrust returns why one side does not trust the other. It returns nil if neither side has refused the other.
func (c *contact) distrust() error {
	var u *errUntrusted
	if errors.As(c.err, &u) {
		return u.err
	}
	if err := c.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// forget deletes the contact of the previous attempt. Call it before each attempt.
func (o *observed) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = nil
}

// lastContact returns the last dial since the call of forget, or nil if there was none.
func (o *observed) lastContact() *contact {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (o *observed) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	conn, err := o.NodeAwareTransport.DialAddressTimeout(a, timeout)
	if a.Name != "" {
		return conn, err
	}
	c := &contact{err: err}
	o.mu.Lock()
	o.last = c
	o.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return &answering{Conn: conn, contact: c}, nil
}

// answering is a connection that records in contact whether the seed has sent anything.
type answering struct {
	net.Conn
	contact *contact
}

// Read implements net.Conn.
func (a *answering) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	if n > 0 {
		a.contact.answered.Store(true)
	}
	if isAlert(err) {
		a.contact.refused.Store(&err)
	}
	return n, err
}
