package resiliency

import (
	"context"
	"time"
)

// Repeat calls the function attempt until it succeeds, the policy permits no more retries, or ctx ends. It returns the
// error of the last attempt. The timeout of the policy applies to each attempt. A policy without Retry permits no
// retries. With a nil policy, Repeat makes one attempt without a timeout.
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
