package node

import (
	"context"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/admin/schema"
)

// callService implements the part of the admin API about API requests.
type callService struct{ log *api.CallLog }

// callLogFor returns the log of API requests to the applications of this process. Usually this is the log of n. If
// another node of the process serves the applications, it is the log of that node.
func callLogFor(n *Node) *api.CallLog {
	if n.place.front != nil {
		return n.place.front.apis.callLog
	}
	return n.apis.callLog
}

// WatchCalls implements admin.Calls.
func (s callService) WatchCalls(ctx context.Context, f schema.CallFilter, take func(schema.CallLine) error) error {
	return s.log.Follow(ctx, api.CallFilter(f), func(calls []api.LiveCall, lost uint64) error {
		if len(calls) == 0 || lost > 0 {
			if err := take(schema.CallLine{Lost: lost}); err != nil {
				return err
			}
		}
		for i := range calls {
			c := &calls[i]
			one := &schema.LiveCall{At: c.At.UTC(), TookMS: float64(c.Took.Microseconds()) / 1000, App: c.App,
				Protocol: c.Protocol, Route: c.Route, Code: c.Code, Failed: c.Failed, Consistency: c.Level,
				Trace: c.Trace}
			if err := take(schema.CallLine{Call: one}); err != nil {
				return err
			}
		}
		return nil
	})
}
