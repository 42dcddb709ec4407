package cli_test

import (
	"context"
	"testing"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// WatchCalls implements admin.Calls. It sends the calls of an application and ends.
func (n *memoryNode) WatchCalls(_ context.Context, f schema.CallFilter, take func(schema.CallLine) error) error {
	if f.App == "none" {
		return fault.New(fault.Unavailable, "test", "too many readers watch the calls of this node")
	}
	at := time.Unix(1700000000, 5e6)
	for _, l := range []schema.CallLine{{}, {Lost: 3},
		{Call: &schema.LiveCall{At: at, TookMS: 2.161, App: "shop", Protocol: "HTTP",
			Route: "GET /v1.0/state/{store}/*", Code: 200, Consistency: "linearizable",
			Trace: "4bf92f3577b34da6a3ce929d0e0e4736"}},
		{Call: &schema.LiveCall{At: at, App: "a\nb", Protocol: "HTTP", Route: "POST /x", Failed: true}}} {
		if err := take(l); err != nil {
			return err
		}
	}
	return nil
}

func TestCalls_Output(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	const first = "22:13:20.005  shop            HTTP 200     2.16ms  linearizable  " +
		"4bf92f3577b34da6a3ce929d0e0e4736  GET /v1.0/state/{store}/*\n"
	c.want(0, first+
		"22:13:20.005  \"a\\nb\"          aborted          0s  -             -                                 "+
		"POST /x\n", "3 calls came too fast", "calls")
	c.want(0, first, "ENDED (UTC)", "calls", "-n", "1")
	c.want(0, `{"at":"2023-11-14T22:13:20.005Z","tookMs":2.161,"app":"shop","protocol":"HTTP",`+
		`"route":"GET /v1.0/state/{store}/*","code":200,"failed":false,"consistency":"linearizable",`+
		`"trace":"4bf92f3577b34da6a3ce929d0e0e4736"}`+"\n", "3 calls came too fast", "calls", "--limit", "1", "--json")
	c.want(1, "", "too many readers watch the calls of this node", "calls", "--app", "none")
	c.want(2, "", "--least -3s is below 0", "calls", "--least", "-3s")
	c.want(2, "", "--limit -1 is below 0", "calls", "--limit", "-1")
}
