package node

import (
	"context"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/admin/schema"
)

// callService implements the part of the admin API about API requests.
type callService struct{ log *api.CallLog }

// callLogFor returns the log of API requests for the applications of this process. Usually n serves these applications,
// and callLogFor returns its log. After a takeover of the shared data directory, n is an additional server without
// applications. The earlier node of the process still serves the applications, so callLogFor returns the log of that
// node.
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
