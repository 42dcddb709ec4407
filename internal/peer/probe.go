package peer

import (
	"context"
	"time"
)

// Probe measures how long it takes to open a connection to server, including TLS and the preamble. It uses a new
// connection, which it closes at once. It returns fault.Unavailable if the connection cannot be opened.
func (p *Port) Probe(ctx context.Context, server string) (time.Duration, error) {
	begun := time.Now()
	c, err := p.dial(ctx, server, kindCall, 0)
	if err != nil {
		return 0, err
	}
	took := time.Since(begun)
	_ = c.Close() // nothing was sent on the connection
	return took, nil
}
