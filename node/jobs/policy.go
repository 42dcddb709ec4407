package jobs

import (
	"context"
	"net/http"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
)

// take delivers a tick to the application under the Resiliency policy p. If p configures retries, a failed delivery is
// repeated. Otherwise there is one attempt, and the failure policy of the job decides about further attempts. The
// result known is false if the application does not know the job.
func take(ctx context.Context, p *resiliency.Policy, target api.App, path string,
	deliver func(context.Context) (bool, error)) (known bool, err error) {
	pauses := p.Pauses()
	for {
		known, err = takeOnce(ctx, p, target, path, deliver)
		if !p.Explicit() || !repeats(p, err) {
			return known, err
		}
		wait, ok := pauses.Next()
		if !ok {
			return known, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return known, err
		}
	}
}

// takeOnce makes one attempt to deliver a tick. Besides the error of the attempt itself, it returns these errors:
//
//	overloaded  the circuit breaker is open; the application has not received the tick
//	internal    the timeout of the policy has passed; this counts as a failure
func takeOnce(ctx context.Context, p *resiliency.Policy, target api.App, path string,
	deliver func(context.Context) (bool, error)) (known bool, err error) {
	end, err := p.Enter(ctx, resiliency.Circuit{Target: target, Method: path})
	if err != nil {
		return true, err
	}
	limited, limit := p.Deadline(ctx)
	known, err = deliver(limited)
	limit.Answered()
	answer := appchannel.AnswerOf(err)
	switch {
	case err == nil && known:
		end(&http.Response{StatusCode: http.StatusOK}, nil)
	case err == nil:
		end(&http.Response{StatusCode: http.StatusNotFound}, nil)
	case answer != nil:
		end(answer, nil)
	default:
		if err = limit.Explain(err); limit.Passed() && !fault.Is(err, fault.Unavailable) {
			err = fault.New(fault.Internal, "jobs", fault.Text(err))
		}
		end(nil, err)
	}
	return known, err
}

// repeats reports whether a policy with retries repeats an attempt that ended with err.
func repeats(p *resiliency.Policy, err error) bool {
	switch {
	case err == nil || fault.Is(err, fault.Overloaded):
		return false
	case appchannel.AnswerOf(err) != nil:
		return p.RetryStatus(appchannel.AnswerOf(err))
	}
	return true
}
