package peer

import (
	"context"
	"time"
)

// Probe opens a new connection to server like one for calls, with TLS and preamble, and closes it. It returns how
// long opening took. It does not use existing connections. It returns fault.Unavailable if the connection cannot be
// opened.
func (p *Port) Probe(ctx context.Context, server string) (time.Duration, error) {
	begun := time.Now()
	c, err := p.dial(ctx, server, kindCall, 0)
	if err != nil {
		return 0, err
	}
	took := time.Since(begun)
	_ = c.Close() // nothing was sent on it
	return took, nil
}
