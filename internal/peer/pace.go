package peer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// piece is the maximum number of bytes in one write to the connection. Each piece has its own time limit. So a slow
// connection can send any amount of data, but a write on a stalled connection fails.
const piece = 64 << 10

// paced is a connection for Raft requests. raft sets one deadline for a whole request, but paced applies this time
// limit to each piece of the request. Otherwise large requests would always fail on a slow link.
type paced struct {
	net.Conn
	limit time.Duration
}

// SetDeadline sets the longest time without progress to the time from now until t.
func (c *paced) SetDeadline(t time.Time) error {
	c.limit = time.Until(t)
	return c.Conn.SetDeadline(t)
}

// Write writes in pieces. The time limit applies to each piece.
func (c *paced) Write(b []byte) (n int, err error) {
	for first := true; len(b) > 0 && err == nil; first = false {
		if !first {
			_ = c.Conn.SetDeadline(time.Now().Add(c.limit)) // if this fails, the write fails too
		}
		var m int
		m, err = c.Conn.Write(b[:min(len(b), piece)])
		b, n = b[m:], n+m
	}
	return n, err
}

// snapshotOut is a connection that sends a snapshot. It limits the time without progress, not the total time. The time
// limit for the answer is longer, because the receiver restores the snapshot before it answers.
type snapshotOut struct {
	net.Conn
	server        string
	stall, answer time.Duration
}

// SetDeadline sets the deadline for reading the answer. The deadline is t or Timing.SnapshotAnswer from now, whichever
// is later. It does not apply to writes.
func (c *snapshotOut) SetDeadline(t time.Time) error {
	if least := time.Now().Add(c.answer); t.Before(least) {
		t = least
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *snapshotOut) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(c.stall)) // if this fails, the write fails too
		var m int
		m, err = c.Conn.Write(b[:min(len(b), piece)])
		b, n = b[m:], n+m
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = &fault.Error{Code: fault.Timeout, Op: "peer.snapshot", Err: err,
			Msg: fmt.Sprintf("server %q has taken no byte of the snapshot for %s; it was cut and starts again",
				c.server, c.stall)}
	}
	return n, err
}

// snapshotIn is a connection that receives a snapshot. If no byte arrives for the time stall, Read closes the
// connection and returns an error. Otherwise raft, which reads the rest of a snapshot after an error, would wait for
// the same time again.
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
		_ = c.Conn.Close() // the error below has the reason
		err = &fault.Error{Code: fault.Timeout, Op: "peer.snapshot",
			Msg: fmt.Sprintf("no byte of the snapshot came for %s; the stream was cut", c.stall), Err: err}
	}
	return n, err
}
