package peer

import (
	"context"
	"time"
)

// Probe opens a new connection to server, with TLS and preamble as for calls, and closes it. It returns how long that
// took, or fault.Unavailable if the connection cannot be opened.
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
