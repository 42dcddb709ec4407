package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/listen"
)

// sockets is a memberlist transport over a UDP port and a TCP port with the same number. Unlike memberlist's own
// transport, its Shutdown closes open connections and waits for them. Its errors say why a port cannot be opened.
type sockets struct {
	tcp     *net.TCPListener
	udp     *net.UDPConn
	packets chan *memberlist.Packet
	streams chan net.Conn

	ctx    context.Context // ends with Shutdown
	cancel context.CancelFunc
	busy   sync.WaitGroup // the two listeners and every connection

	mu    sync.Mutex
	conns map[*stream]struct{}
	down  bool
}

// portAttempts bounds the search for a port that is free for both protocols.
const portAttempts = 16

// openSockets opens a TCP and a UDP socket on the same port. If port is 0, the system chooses the port. If the port is
// in use, openSockets returns fault.Unavailable, unless fallback permits another port.
func openSockets(host netip.Addr, port uint16, fallback bool) (*sockets, error) {
	s, err := bind(host, port)
	for i := 0; i < portAttempts && err != nil && (port == 0 || fallback) && errors.Is(err, syscall.EADDRINUSE); i++ {
		s, err = bind(host, 0)
	}
	if err != nil {
		return nil, bindError(err, netip.AddrPortFrom(host, port))
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.busy.Go(s.accept)
	s.busy.Go(s.receive)
	return s, nil
}

func bind(host netip.Addr, port uint16) (*sockets, error) {
	tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(host, port)))
	if err != nil {
		return nil, err
	}
	port = uint16(tcp.Addr().(*net.TCPAddr).Port)
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(host, port)))
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	for size := receiveBuffer; size > 0 && udp.SetReadBuffer(size) != nil; size /= 2 {
	}
	return &sockets{tcp: tcp, udp: udp, packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
		conns: map[*stream]struct{}{}}, nil
}

const (
	receiveBuffer = 2 << 20   // requested from the system, so that bursts are not lost
	maxPacket     = 64 * 1024 // the most UDP carries
)

func bindError(err error, at netip.AddrPort) error {
	e := &fault.Error{Code: fault.Internal, Op: "membership.Open",
		Msg: fmt.Sprintf("cannot listen for gossip on %s", at), Err: err}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		e.Code, e.Err = fault.Unavailable, syscall.EADDRINUSE
		network := "tcp"
		if op := (*net.OpError)(nil); errors.As(err, &op) {
			network = op.Net
		}
		e.Hint = listen.InUse(network, at, "--gossip-port")
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		e.Code, e.Hint = fault.Denied, "choose a port above 1023 with --gossip-port"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		e.Code, e.Hint = fault.Invalid, "give an address of this machine with --bind-address"
	}
	return e
}

// port returns the bound port.
func (s *sockets) port() uint16 { return uint16(s.tcp.Addr().(*net.TCPAddr).Port) }

func (s *sockets) accept() {
	wait := time.Millisecond
	for {
		c, err := s.tcp.AcceptTCP()
		if err == nil {
			wait = time.Millisecond
			if conn := s.track(c); conn != nil {
				s.deliver(conn)
			}
			continue
		}
		if !pause(s.ctx, wait) { // out of file descriptors, or closed
			return
		}
		wait = min(2*wait, time.Second)
	}
}

func (s *sockets) deliver(conn net.Conn) {
	select {
	case s.streams <- conn:
	case <-s.ctx.Done():
		_ = conn.Close()
	}
}

func (s *sockets) receive() {
	buf := make([]byte, maxPacket)
	for {
		n, from, err := s.udp.ReadFrom(buf)
		now := time.Now()
		if err != nil {
			if !pause(s.ctx, time.Millisecond) {
				return
			}
			continue
		}
		if n == 0 {
			continue
		}
		select { // memberlist keeps the buffer
		case s.packets <- &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: now}:
		case <-s.ctx.Done():
			return
		}
	}
}

// FinalAdvertiseAddr implements memberlist.Transport. It returns ip and port unchanged, because Open has already
// chosen them.
func (s *sockets) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return nil, 0, err
	}
	return addr.AsSlice(), port, nil
}

// PacketCh implements memberlist.Transport.
func (s *sockets) PacketCh() <-chan *memberlist.Packet { return s.packets }

// StreamCh implements memberlist.Transport.
func (s *sockets) StreamCh() <-chan net.Conn { return s.streams }

// WriteTo implements memberlist.Transport.
func (s *sockets) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, err
	}
	_, err = s.udp.WriteToUDPAddrPort(b, to)
	return time.Now(), err
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (s *sockets) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return s.WriteTo(b, a.Addr)
}

// DialTimeout implements memberlist.Transport.
func (s *sockets) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if conn := s.track(c); conn != nil {
		return conn, nil
	}
	return nil, net.ErrClosed
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (s *sockets) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return s.DialTimeout(a.Addr, timeout)
}

// Shutdown implements memberlist.Transport. It closes all connections, and then waits until the goroutines that use
// them have called Close.
func (s *sockets) Shutdown() error {
	s.mu.Lock()
	s.down = true
	open := make([]*stream, 0, len(s.conns))
	for c := range s.conns {
		open = append(open, c)
	}
	s.mu.Unlock()
	s.cancel()
	err := errors.Join(s.tcp.Close(), s.udp.Close())
	for _, c := range open {
		_ = c.Conn.Close() // the code that uses the connection notices this, and calls Close
	}
	s.busy.Wait()
	return err
}

// track registers a connection for Shutdown. If Shutdown was called already, track closes the connection and returns
// nil.
func (s *sockets) track(c net.Conn) net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		_ = c.Close()
		return nil
	}
	conn := &stream{Conn: c, owner: s}
	s.conns[conn] = struct{}{}
	s.busy.Add(1)
	return conn
}

// stream is a connection that Shutdown waits for.
type stream struct {
	net.Conn
	owner *sockets
	once  sync.Once
}

// Write implements net.Conn. It closes the connection if the write fails, because memberlist does not close a
// connection whose first write fails.
func (c *stream) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		_ = c.Close()
	}
	return n, err
}

// Close closes the connection and unregisters it.
func (c *stream) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.owner.mu.Lock()
		delete(c.owner.conns, c)
		c.owner.mu.Unlock()
		c.owner.busy.Done()
	})
	return err
}

// pause waits for the duration d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
