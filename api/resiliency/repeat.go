package resiliency

import (
	"context"
	"time"
)

// Repeat calls attempt until it succeeds or the policy allows no more retries, and returns the last error. The timeout
// of the policy applies to each attempt. With a nil policy, Repeat makes one attempt without a timeout.
func (p *Policy) Repeat(ctx context.Context, attempt func(context.Context) error) error {
	if p == nil {
		return attempt(ctx)
	}
	once := func() error {
		if p.Timeout <= 0 {
			return attempt(ctx)
		}
		bounded, cancel := context.WithTimeout(ctx, p.Timeout)
		defer cancel()
		return attempt(bounded)
	}
	err := once()
	if err == nil || p.Retry == nil {
		return err
	}
	for pauses := p.Pauses(); err != nil; err = once() {
		wait, ok := pauses.Next()
		if !ok {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
	return nil
}
