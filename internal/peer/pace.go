package peer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// piece is how much must get through for a write to count as progress.
const piece = 64 << 10

// paced is a connection for Raft requests. The deadline that raft sets for a whole request
// and its answer becomes the longest time without progress: several megabytes of entries
// over a slow link must not fail for ever because they take longer than one heartbeat may.
type paced struct {
	net.Conn
	limit time.Duration
}

// SetDeadline notes how long progress may take.
func (c *paced) SetDeadline(t time.Time) error {
	c.limit = time.Until(t)
	return c.Conn.SetDeadline(t)
}

// Write writes in pieces; each has the whole time.
func (c *paced) Write(b []byte) (n int, err error) {
	for first := true; len(b) > 0 && err == nil; first = false {
		if !first {
			_ = c.Conn.SetDeadline(time.Now().Add(c.limit)) // if it fails, so does the write
		}
		var m int
		m, err = c.Conn.Write(b[:min(len(b), piece)])
		b, n = b[m:], n+m
	}
	return n, err
}

// snapshotOut is a connection that sends a snapshot. A write that makes no progress is cut;
// the answer may take as long as restoring takes.
type snapshotOut struct {
	net.Conn
	server        string
	stall, answer time.Duration
}

// SetDeadline gives the receiver until t, but at least the time to restore, for its answer.
func (c *snapshotOut) SetDeadline(t time.Time) error {
	if least := time.Now().Add(c.answer); t.Before(least) {
		t = least
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *snapshotOut) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(c.stall)) // if it fails, so does the write
		var m int
		m, err = c.Conn.Write(b[:min(len(b), piece)])
		b, n = b[m:], n+m
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = &fault.Error{Code: fault.Timeout, Op: "peer.snapshot", Err: err,
			Msg: fmt.Sprintf("server %q has taken no byte of the snapshot for %s; it was cut and starts again", c.server, c.stall)}
	}
	return n, err
}

// snapshotIn is a connection that receives a snapshot. Once a read has stalled the
// connection is closed, so that whoever drains the rest does not wait again.
type snapshotIn struct {
	net.Conn
	stall time.Duration
}

func (c *snapshotIn) Read(b []byte) (int, error) {
	if err := c.Conn.SetReadDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = c.Conn.Close() // the error below tells why
		err = &fault.Error{Code: fault.Timeout, Op: "peer.snapshot", Msg: fmt.Sprintf("no byte of the snapshot came for %s; the stream was cut", c.stall), Err: err}
	}
	return n, err
}
