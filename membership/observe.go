package membership

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// observed notes how far the last dial for a join got. Memberlist tells why a join failed
// as text only; joining has to know whether there was an answer. It knows joins from other
// exchanges by the missing name: who joins does not know yet whom it will meet.
type observed struct {
	memberlist.NodeAwareTransport

	mu   sync.Mutex
	last *contact
}

// contact is one attempt to reach a seed.
type contact struct {
	err      error // of the dial
	answered atomic.Bool
	refused  atomic.Pointer[error] // the other side ended TLS on purpose
}

// distrust is why one of the two does not trust the other; nil if it is not about trust.
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

// forget clears what was noted before an attempt.
func (o *observed) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = nil
}

// lastContact returns what was noted since; nil if there was no dial.
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

// answering notes that something was read.
type answering struct {
	net.Conn
	contact *contact
}

// Read reads.
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
