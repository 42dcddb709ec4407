package peer

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/quorate/quorate/internal/fault"
)

// secureServer puts TLS on an accepted connection. The state is nil without TLS.
func (p *Port) secureServer(ctx context.Context, raw net.Conn) (net.Conn, *tls.ConnectionState, error) {
	if p.opts.TLS == nil {
		return raw, nil, nil
	}
	conf, _ := p.opts.TLS()
	if conf == nil {
		return nil, nil, errNoTLS()
	}
	return shake(ctx, tls.Server(raw, conf))
}

// secureClient puts TLS on a dialled connection.
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
	return shake(ctx, tls.Client(raw, conf))
}

// errNoTLS never falls back to plain TCP.
func errNoTLS() error {
	return fault.New(fault.Internal, "peer.secure", "there is no TLS configuration for the peer port, although it must be secured")
}

func shake(ctx context.Context, c *tls.Conn) (net.Conn, *tls.ConnectionState, error) {
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	state := c.ConnectionState()
	return c, &state, nil
}
