package api

import (
	"context"
	"time"
)

// Repeat carries out attempt as often as the policy's retry says, each within the
// policy's timeout, and returns the last error. A nil policy means once.
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
	for pauses := p.pauses(); err != nil; err = once() {
		wait, ok := pauses.next()
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
