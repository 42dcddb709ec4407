package peer

import (
	"context"
	"time"
)

// Probe makes a connection to server as a call would, TLS and preamble included, whatever
// connections there are, closes it, and returns how long that took. Errors are those of Call.
func (p *Port) Probe(ctx context.Context, server string) (time.Duration, error) {
	begun := time.Now()
	c, err := p.dial(ctx, server, kindCall, 0)
	if err != nil {
		return 0, err
	}
	took := time.Since(begun)
	_ = c.Close() // nothing was said on it
	return took, nil
}
