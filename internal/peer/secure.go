package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/quorate/quorate/internal/fault"
)

// tlsHandshake is the first byte of a caller that speaks TLS.
const tlsHandshake = 0x16

// secureServer starts TLS on an accepted connection, if this port uses TLS. If only one side uses TLS, secureServer
// sends the caller a refusal and also returns it.
//
// The returned hello is set only if the port uses TLS and the caller does not. It then names the caller.
func (p *Port) secureServer(ctx context.Context, raw net.Conn) (net.Conn, *tls.ConnectionState, hello, error) {
	c := &replay{Conn: raw}
	if _, err := raw.Read(c.first[:]); err != nil {
		return nil, nil, hello{}, err
	}
	self := p.opts.Self().Server
	switch speaksTLS := c.first[0] == tlsHandshake; {
	case p.opts.TLS == nil && speaksTLS:
		r := refuse(ReasonPlain, fault.Denied, fmt.Sprintf("the caller is secured, but server %q is not", self),
			"give all nodes the same --cluster-token-file")
		tell(raw, r)
		return nil, nil, hello{}, r
	case p.opts.TLS == nil:
		return c, nil, hello{}, nil
	case c.first[0] == magic[0]:
		h, err := readHello(c)
		if err == nil {
			err = refuse(ReasonPlain, fault.Denied,
				fmt.Sprintf("server %q is secured, but the caller, which claims to be %q, is not", self, h.From),
				"start the caller with the --cluster-token-file of the cluster")
			tell(raw, err)
		}
		return nil, nil, h, err
	}
	conf, _ := p.opts.TLS()
	if conf == nil {
		return nil, nil, hello{}, errNoTLS()
	}
	secure, state, err := shake(ctx, tls.Server(c, conf))
	return secure, state, hello{}, explainAccept(err)
}

// replay is a connection that first returns the byte that was already read to detect TLS, and then all further bytes.
type replay struct {
	net.Conn
	first [1]byte
	done  bool
}

// Read implements net.Conn.
func (r *replay) Read(p []byte) (int, error) {
	if r.done || len(p) == 0 {
		return r.Conn.Read(p)
	}
	r.done = true
	return copy(p, r.first[:]), nil
}

// explainAccept explains a failed TLS handshake on an accepted connection. It returns a refusal with a hint, except for
// a timeout, which it returns unchanged.
func explainAccept(err error) error {
	switch {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return err
	case isAlert(err):
		return refuse(ReasonTLS, fault.Denied, "the caller does not accept this node's certificate ("+err.Error()+")",
			"its log says why; most often the cluster tokens differ")
	}
	if _, ok := RefusedBecause(err); ok {
		return distrusted("the caller", err)
	}
	return refuse(ReasonTLS, fault.Denied, "the TLS handshake failed: "+err.Error(),
		"what dials the peer port must be a node with the same cluster token")
}

// secureClient starts TLS on a dialled connection, if this port uses TLS.
func (p *Port) secureClient(ctx context.Context, raw net.Conn, server string) (net.Conn, *tls.ConnectionState, error) {
	if p.opts.TLS == nil {
		return raw, nil, nil
	}
	_, conf := p.opts.TLS()
	if conf == nil {
		return nil, nil, errNoTLS()
	}
	if conf.ServerName == "" && !conf.InsecureSkipVerify {
		conf = conf.Clone()
		conf.ServerName = server
	}
	c, state, err := shake(ctx, tls.Client(raw, conf))
	return c, state, explainDial(server, err)
}

// explainDial explains a failed TLS handshake on a dialed connection. It returns a refusal with a hint. If the network
// may have caused the error, explainDial returns it unchanged.
func explainDial(server string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := RefusedBecause(err); ok {
		return distrusted("it", err)
	}
	var record tls.RecordHeaderError
	if errors.As(err, &record) && string(record.RecordHeader[:len(magic)]) == magic {
		r := refuse(ReasonPlain, fault.Denied, fmt.Sprintf("this node is secured, but server %q is not", server),
			"give all nodes the same --cluster-token-file")
		r.here = true
		return r
	}
	return remoteAlert(server, err)
}

// remoteAlert returns a refusal if err is a TLS alert. The alert means that the other side rejected this node's
// certificate. remoteAlert returns any other error unchanged.
func remoteAlert(server string, err error) error {
	if !isAlert(err) {
		return err
	}
	return refuse(ReasonTLS, fault.Denied, fmt.Sprintf("server %q does not accept this node's certificate (%s)",
		server, err), "its log says why; most often the cluster tokens differ")
}

// isAlert reports whether err is a TLS alert from the other side. It checks the Op of the net.OpError, because
// package tls has no exported type for a received alert.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// errNoTLS returns the error for a missing TLS configuration. The port never falls back to plain TCP.
func errNoTLS() error {
	return fault.New(fault.Internal, "peer.secure",
		"there is no TLS configuration for the peer port, although it must be secured")
}

func shake(ctx context.Context, c *tls.Conn) (net.Conn, *tls.ConnectionState, error) {
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	state := c.ConnectionState()
	return c, &state, nil
}

// prove verifies the other side and sets c.caller to its identity. With TLS, the identity comes from the certificate,
// and prove returns a refusal if the certificate is not trusted. Without TLS, the identity is the unproven server id
// from the preamble.
func (p *Port) prove(c *conn, state *tls.ConnectionState) error {
	c.caller = Caller{Server: c.server}
	if state == nil {
		return nil
	}
	proven, err := p.opts.VerifyPeer(*state, c.server)
	if err != nil && c.direction == Inbound {
		return distrusted("the caller", err)
	}
	if err != nil {
		return distrusted("it", err)
	}
	proven.Server, proven.Proven = c.server, true
	c.caller = proven
	return nil
}
