package membership

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/pending"
	"github.com/quorate/quorate/internal/trust"
)

// secured wraps a transport. It encrypts packets and uses TLS on streams. It drops, counts and logs the packets and
// streams that it refuses.
type secured struct {
	memberlist.NodeAwareTransport
	seal    *sealer
	tls     func() (server, client *tls.Config)
	refuse  func(*refusal)
	timeout time.Duration // timeout of a handshake
	packets chan *memberlist.Packet
	streams chan net.Conn
	pending *pending.Set // accepted streams during their handshake

	ctx    context.Context // ends with Shutdown
	cancel context.CancelFunc
	busy   sync.WaitGroup
}

func newSecured(t memberlist.NodeAwareTransport, o Options, refuse func(*refusal)) (*secured, error) {
	seal, err := newSealer(o.Label, o.Facts.Name(), o.SecretKeys)
	if err != nil {
		return nil, err
	}
	s := &secured{NodeAwareTransport: t, seal: seal, tls: o.TLS, refuse: refuse, timeout: o.Timing.StreamTimeout,
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
		pending: pending.New(pending.Limits{FirstByte: o.Timing.FirstByte})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.busy.Go(s.receive)
	s.busy.Go(s.accept)
	return s, nil
}

// receive decrypts packets and passes them on. It drops packets that are refused.
func (s *secured) receive() {
	for {
		select {
		case p := <-s.NodeAwareTransport.PacketCh():
			packet, why := s.seal.open(p.Buf, p.Timestamp)
			if why != "" {
				s.refuse(refusedPacket(why, p.From))
				continue
			}
			p.Buf = packet
			select {
			case s.packets <- p:
			case <-s.ctx.Done():
				return
			}
		case <-s.ctx.Done():
			return
		}
	}
}

// refusedPacket returns the refusal of a packet for the given reason. If the reason is Stale, the refusal has no error
// and is not logged. The log limit applies per reason, not per source, because a source address can be forged.
func refusedPacket(reason Reason, source net.Addr) *refusal {
	e := &fault.Error{Code: fault.Denied, Op: "membership.receive"}
	switch reason {
	case Plain:
		e.Msg, e.Hint = fmt.Sprintf("a packet from %s is not sealed", source),
			"a node there is not secured: give it the --cluster-token-file of the cluster"
	case UnknownKey:
		e.Msg, e.Hint = fmt.Sprintf("a packet from %s is sealed under a cluster token that this node does not know",
			source), "give both nodes the same --cluster-token-file"
	case Replayed:
		e.Msg = fmt.Sprintf("a packet from %s was received before: either the network duplicates packets, or somebody "+
			"records and repeats them", source)
	case Forged:
		e.Msg = fmt.Sprintf("a packet from %s was changed in transit, or forged", source)
	case Stale: // expected for a while after a restart
		return &refusal{reason: reason}
	}
	return &refusal{reason: reason, err: e}
}

// accept runs the handshakes of accepted streams.
func (s *secured) accept() {
	for {
		select {
		case c := <-s.NodeAwareTransport.StreamCh():
			waiting := s.pending.Add(c)
			s.busy.Go(func() { s.welcome(waiting) })
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *secured) welcome(raw *pending.Conn) {
	conf, _ := s.tls()
	c, err := s.shake(raw, s.timeout, func() (*tls.Conn, error) {
		if conf == nil {
			return nil, errNoTLS()
		}
		return tls.Server(raw, conf), nil
	}, func(c net.Conn) error {
		_, err := c.Write([]byte{accepted})
		return err
	})
	cut := raw.Done()
	if err != nil {
		switch {
		case s.ctx.Err() != nil:
		case cut != pending.NotCut:
			s.refuse(s.cutStream(raw.RemoteAddr(), cut))
		default:
			s.refuse(refusedStream(raw.RemoteAddr(), err))
		}
		return
	}
	select {
	case s.streams <- c:
	case <-s.ctx.Done():
		_ = c.Close()
	}
}

func errNoTLS() error {
	return fault.New(fault.Unavailable, "membership.secured", "this node has no certificate yet")
}

// accepted is the byte with which the accepting side confirms that it has verified the certificate of the dialing node.
// The dialing node waits for this byte, because its TLS 1.3 handshake can end before the verification.
const accepted = 1

func awaitAccepted(c net.Conn) error {
	var b [1]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return err
	}
	if b[0] != accepted {
		return fault.New(fault.Unimplemented, "membership.secured", "it speaks another version of secured gossip")
	}
	return nil
}

// shake runs the TLS handshake on the connection raw and then calls greet, both within the timeout. The function make
// returns the TLS connection over raw. shake returns the TLS stream. After an error, it closes raw.
func (s *secured) shake(raw net.Conn, timeout time.Duration, make func() (*tls.Conn, error),
	greet func(net.Conn) error) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	c, err := make()
	if err == nil {
		err = c.HandshakeContext(ctx)
	}
	if err == nil {
		stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
		err = greet(c)
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return &tlsStream{Conn: c}, nil
}

// tlsStream is a stream over TLS. It closes itself when a write fails, because memberlist does not close a stream
// whose first write fails.
type tlsStream struct {
	*tls.Conn
	once sync.Once
	err  error
}

// Write implements net.Conn.
func (t *tlsStream) Write(b []byte) (int, error) {
	n, err := t.Conn.Write(b)
	if err != nil {
		_ = t.Close()
	}
	return n, err
}

// Close implements net.Conn.
func (t *tlsStream) Close() error {
	t.once.Do(func() { t.err = t.Conn.Close() })
	return t.err
}

// reasonOf returns why a handshake failed.
func reasonOf(err error) Reason {
	var record tls.RecordHeaderError
	if doubt, ok := trust.DoubtOf(err); ok {
		return Reason(doubt)
	}
	if errors.As(err, &record) {
		return Plain
	}
	return Handshake
}

// refusedStream explains why an accepted stream is refused.
func refusedStream(from net.Addr, err error) *refusal {
	host, _, _ := net.SplitHostPort(from.String())
	r := &refusal{reason: reasonOf(err), about: host}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return r // the dialler ran out of time, as probes may
	}
	e := &fault.Error{Code: fault.Denied, Op: "membership.accept",
		Msg: fmt.Sprintf("a gossip connection from %s is refused", from), Err: err}
	switch {
	case r.reason == Plain:
		e.Hint = "a node there is not secured: give it the --cluster-token-file of the cluster"
	case isAlert(err):
		e.Msg = fmt.Sprintf("a node at %s does not accept this node's certificate", host)
		e.Hint = "its log says why; most often the cluster tokens differ"
	}
	r.err = e
	return r
}

// cutStream explains why a stream was closed during its handshake.
func (s *secured) cutStream(from net.Addr, cut pending.Cut) *refusal {
	host, _, _ := net.SplitHostPort(from.String())
	r := &refusal{reason: Busy, about: host}
	if cut == pending.Silent {
		r.reason = Silent
	}
	r.err = &fault.Error{Code: fault.Overloaded, Op: "membership.accept",
		Msg: fmt.Sprintf("a gossip connection from %s is closed: %s", from, s.pending.Explain(cut)),
		Hint: "find out which program at that address opens connections to the gossip port without using " +
			"them, and keep it away with a firewall"}
	return r
}

// isAlert reports whether err is a TLS alert from the other side. It checks the Op of the net.OpError, because
// package tls has no exported type for a received alert.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// errUntrusted is the error of a dial that failed because one side does not trust the other.
type errUntrusted struct{ err error }

func (e *errUntrusted) Error() string { return fault.Text(e.err) }
func (e *errUntrusted) Unwrap() error { return e.err }

// WriteToAddress implements memberlist.NodeAwareTransport. It encrypts the packet for the node named in the address.
func (s *secured) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return s.NodeAwareTransport.WriteToAddress(s.seal.seal(a.Name, b), a)
}

// WriteTo implements memberlist.Transport.
func (s *secured) WriteTo(b []byte, addr string) (time.Time, error) {
	return s.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (s *secured) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	began := time.Now()
	raw, err := s.NodeAwareTransport.DialAddressTimeout(a, timeout)
	if err != nil {
		return nil, err
	}
	_, conf := s.tls()
	c, err := s.shake(raw, max(timeout-time.Since(began), time.Millisecond), func() (*tls.Conn, error) {
		if conf == nil {
			return nil, errNoTLS()
		}
		return tls.Client(raw, conf), nil
	}, awaitAccepted)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, context.Canceled):
		return nil, err
	case err != nil:
		return nil, &errUntrusted{err}
	}
	return c, nil
}

// DialTimeout implements memberlist.Transport.
func (s *secured) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return s.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// PacketCh implements memberlist.Transport.
func (s *secured) PacketCh() <-chan *memberlist.Packet { return s.packets }

// StreamCh implements memberlist.Transport.
func (s *secured) StreamCh() <-chan net.Conn { return s.streams }

// Shutdown implements memberlist.Transport.
func (s *secured) Shutdown() error {
	s.cancel()
	s.pending.Close()
	err := s.NodeAwareTransport.Shutdown()
	s.busy.Wait()
	return err
}
