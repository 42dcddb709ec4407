package mongodb

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/ocsp"

	"github.com/quorate/quorate/internal/frames"
	"github.com/quorate/quorate/internal/rest"
)

// maxRevocation is the largest answer in bytes about the revocation of a certificate.
const maxRevocation = 1 << 20

// dialer connects to MongoDB servers. Its connections check the messages of a server before the driver reads them,
// because the driver allocates memory for every length that a server announces. A message can be checked only after
// decryption, so the dialer negotiates TLS itself.
type dialer struct {
	plain      net.Dialer
	tls        *tls.Config // nil = plain TCP
	revocation *ocsp.VerifyOptions
}

// check sets a dialer in the client options, so that the messages of servers are checked. It moves the TLS settings
// from the options to the dialer.
func check(o *options.ClientOptions) {
	d := &dialer{plain: net.Dialer{KeepAlive: 5 * time.Minute}, tls: o.TLSConfig}
	o.TLSConfig = nil
	transport := rest.Transport(rest.TLS(nil))
	transport.DisableKeepAlives = true
	o.SetHTTPClient(&http.Client{Transport: rest.LimitTo(transport, maxRevocation), Timeout: 10 * time.Second})
	if d.tls != nil && !d.tls.InsecureSkipVerify && !set(o.DisableCertificateRevocationCheck) {
		d.revocation = &ocsp.VerifyOptions{Cache: ocsp.NewCache(), HTTPClient: o.HTTPClient,
			DisableEndpointChecking: set(o.DisableOCSPEndpointCheck)}
	}
	o.SetDialer(d)
}

func set(option *bool) bool { return option != nil && *option }

// DialContext implements options.ContextDialer.
func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.plain.DialContext(ctx, network, address)
	if err == nil && d.tls != nil {
		conn, err = d.encrypted(ctx, conn, address)
	}
	if err != nil {
		return nil, err
	}
	return frames.Wrap(conn, frames.NewMongoDB()), nil
}

// encrypted returns a TLS connection over conn. If it fails, it closes conn.
func (d *dialer) encrypted(ctx context.Context, conn net.Conn, address string) (net.Conn, error) {
	config := d.tls.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(address)
	}
	secured := tls.Client(conn, config)
	err := secured.HandshakeContext(ctx)
	if err == nil && d.revocation != nil {
		err = ocsp.Verify(ctx, secured.ConnectionState(), d.revocation)
	}
	if err != nil {
		_ = conn.Close() // the first error is more useful
		return nil, err
	}
	return secured, nil
}
