package peer

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// snapshotMark is the suffix of an address to which raft sends a snapshot. The part before the suffix is the server id,
// which never contains the suffix. For such an address, Dial opens a connection for snapshots.
const snapshotMark = "\x00snapshot"

// layer is the raft.StreamLayer of one group. It dials servers by their ids, and accepts the connections of the group
// that arrive at the port. Close also closes the connections in both directions, because raft.NetworkTransport does
// not.
type layer struct {
	port     *Port
	group    uint32
	incoming chan net.Conn
	ctx      context.Context // ends with the layer
	cancel   context.CancelFunc
	users    sync.WaitGroup // dials in progress, and connections that raft's goroutines serve

	mu     sync.Mutex // guards what follows
	open   map[*held]struct{}
	closed bool
}

var _ raft.StreamLayer = (*layer)(nil)

func newLayer(p *Port, group uint32) *layer {
	l := &layer{port: p, group: group, incoming: make(chan net.Conn), open: map[*held]struct{}{}}
	l.ctx, l.cancel = context.WithCancel(p.ctx)
	return l
}

// held is a connection of the group.
type held struct {
	net.Conn
	layer   *layer
	inbound bool
	once    sync.Once
}

// Close closes the connection. raft calls Close on an inbound connection that it no longer uses.
func (h *held) Close() error {
	h.once.Do(func() {
		h.layer.mu.Lock()
		delete(h.layer.open, h)
		h.layer.mu.Unlock()
		if h.inbound {
			h.layer.users.Done()
		}
	})
	return h.Conn.Close()
}

// hold registers a connection, so that it is closed together with the layer. inbound is true if the other side has
// opened the connection. hold returns nil if the layer is already closed.
func (l *layer) hold(c net.Conn, inbound bool) *held {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	h := &held{Conn: c, layer: l, inbound: inbound}
	l.open[h] = struct{}{}
	if inbound {
		l.users.Add(1)
	}
	return h
}

// enter counts a dial. It returns false if the layer is closed.
func (l *layer) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.users.Add(1)
	return true
}

// offer passes an accepted connection to raft. It returns false if the layer is closed.
func (l *layer) offer(c *conn, k kind) bool {
	var pacing net.Conn = c
	if k == kindSnapshot {
		pacing = &snapshotIn{Conn: c, stall: l.port.opts.Timing.SnapshotStall}
	}
	h := l.hold(pacing, true)
	if h == nil {
		return false
	}
	select {
	case l.incoming <- h:
	case <-l.ctx.Done():
		_ = h.Close() // the connection is not used
	}
	return true
}

// Accept implements net.Listener.
func (l *layer) Accept() (net.Conn, error) {
	select {
	case c := <-l.incoming:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Dial implements raft.StreamLayer. The address is the id of the server.
func (l *layer) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	if !l.enter() {
		return nil, errPortClosed("peer.dial")
	}
	defer l.users.Done()
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	server, snapshot := strings.CutSuffix(string(to), snapshotMark)
	k := kindRaft
	if snapshot {
		k = kindSnapshot
	}
	c, err := l.port.dial(ctx, server, k, l.group)
	if err != nil {
		return nil, err
	}
	t := l.port.opts.Timing
	var pacing net.Conn = &paced{Conn: c}
	if snapshot {
		pacing = &snapshotOut{Conn: c, server: server, stall: t.SnapshotStall, answer: t.SnapshotAnswer}
	}
	h := l.hold(pacing, false)
	if h == nil {
		_ = c.Close()
		return nil, errPortClosed("peer.dial")
	}
	return h, nil
}

// Close implements net.Listener. It ends every connection and dial of the group.
func (l *layer) Close() error {
	l.mu.Lock()
	l.closed = true
	chosen := make([]*held, 0, len(l.open))
	for h := range l.open {
		chosen = append(chosen, h)
	}
	l.mu.Unlock()
	l.cancel()
	for _, h := range chosen {
		_ = h.Conn.Close() // the user of the connection gets an error and closes h
	}
	return nil
}

// Addr implements net.Listener. The address of a server is its id.
func (l *layer) Addr() net.Addr { return address(l.port.opts.Self().Server) }

type address string

func (address) Network() string  { return "quorate" }
func (a address) String() string { return string(a) }
