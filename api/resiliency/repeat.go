package resiliency

import (
	"context"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Repeat calls a function until it succeeds, the policy permits no more retries, or ctx ends. It returns the error of
// the last attempt. The timeout of the policy applies to each attempt. If p is nil, there is only one attempt, and no
// timeout.
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

// RepeatWrite is like Repeat, and is meant for operations that change something. If every attempt fails and the outcome
// of at least one is unknown, it returns fault.Indeterminate, because something may have changed.
func (p *Policy) RepeatWrite(ctx context.Context, attempt func(context.Context) error) error {
	unknown := false
	err := p.Repeat(ctx, func(ctx context.Context) error {
		err := attempt(ctx)
		unknown = unknown || fault.Is(err, fault.Indeterminate)
		return err
	})
	if err == nil || !unknown || fault.Is(err, fault.Indeterminate) {
		return err
	}
	out := &fault.Error{Code: fault.Indeterminate, Op: "resiliency.RepeatWrite", Key: fault.KeyOf(err),
		Msg: "an earlier attempt may have been executed, and the last one failed"}
	if last, ok := fault.As(err); ok { // the text of any other error may contain a secret
		out.Err = last
	}
	return out
}
