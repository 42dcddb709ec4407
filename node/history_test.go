package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/history"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/raftfsm/group"
)

// seenValue is a value as a client has read it.
type seenValue struct{ value, etag string }

// regClient makes random strong requests to random nodes.
type regClient struct {
	id    int
	nodes []*node.Node
	rnd   *rand.Rand
	http  http.Client
	seen  map[string]seenValue // by key
	h     *history.Keys
	count int
}

func (c *regClient) run(ctx context.Context) {
	for ctx.Err() == nil {
		c.count++
		key, change := "k"+strconv.Itoa(c.rnd.IntN(3)), history.Change{Value: fmt.Sprintf("c%d-%d", c.id, c.count)}
		in := history.KeyCall{Family: key, Write: []history.Change{change}}
		switch p := c.rnd.IntN(10); {
		case p < 4, p >= 8 && c.seen[key].value == "":
			in = history.KeyCall{Family: key, Read: []int{0}}
		case p < 6:
		case p < 7:
			in.Write[0].Value = ""
		case p < 8:
			in.Write[0].Absent = true
		default:
			in.Write[0].Expect = c.seen[key].value
		}
		begin := c.h.Now()
		if out, done := c.do(in); done {
			c.h.Add(c.id, begin, in, out)
		}
	}
}

// do executes one operation. done is false if the operation certainly had no effect and returned nothing.
func (c *regClient) do(in history.KeyCall) (out history.KeyAnswer, done bool) {
	base := "http://" + c.nodes[c.rnd.IntN(len(c.nodes))].Addresses().API[0] + "/v1.0/state/statestore"
	key := in.Family
	method, url, body := http.MethodPost, base, ""
	switch {
	case len(in.Read) > 0:
		method, url = http.MethodGet, base+"/"+key+"?consistency=strong"
	case in.Write[0].Value == "":
		method, url = http.MethodDelete, base+"/"+key+"?consistency=strong"
	case in.Write[0].Absent:
		body = fmt.Sprintf(`[{"key":%q,"value":%q,"options":{"consistency":"strong","concurrency":"first-write"}}]`,
			key, in.Write[0].Value)
	case in.Write[0].Expect != "":
		body = fmt.Sprintf(`[{"key":%q,"value":%q,"etag":%q,"options":{"consistency":"strong"}}]`, key,
			in.Write[0].Value, c.seen[key].etag)
	default:
		body = fmt.Sprintf(`[{"key":%q,"value":%q,"options":{"consistency":"strong"}}]`, key, in.Write[0].Value)
	}
	req, err := http.NewRequest(method, url, bytes.NewBufferString(body)) //nolint:noctx // the client has a time-out
	if err != nil {
		return out, false
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return history.KeyAnswer{Unknown: true}, true
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return history.KeyAnswer{Unknown: true}, true
	case resp.StatusCode == 200:
		var value string
		if json.Unmarshal(text, &value) != nil {
			value = string(text)
		}
		c.seen[key] = seenValue{value, resp.Header.Get("Etag")}
		c.h.ETag(key, 0, resp.Header.Get("Etag"), value)
		return history.KeyAnswer{Values: []string{value}}, true
	case resp.StatusCode == 204 && len(in.Read) > 0:
		return history.KeyAnswer{Values: []string{""}}, true
	case resp.StatusCode == 204:
		return out, true
	case resp.StatusCode == 409:
		return history.KeyAnswer{Conflict: true}, true
	case bytes.Contains(text, []byte(`"reason":"indeterminate"`)):
		return history.KeyAnswer{Unknown: true}, true
	}
	return out, false // refused, so it was not executed
}

// Strong operations of clients on all nodes are linearizable while the leader is cut off, deaf, mute, or stopped,
// again and again.
func TestHistory_LinearizableUnderNetworkFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a cluster under load for many seconds")
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("QUORATE_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("QUORATE_SEED=%d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a schedule, not a secret
	// Requests to a node that is cut off end soon, so that clients continue at other nodes.
	nodes, _ := threeWith(t, func(c *node.Config) {
		c.API.RequestTimeout = 400 * time.Millisecond
		// short timeouts, so that an election ends within a fault
		c.Cluster.Timing = group.Timing{Heartbeat: 250 * time.Millisecond, Election: 250 * time.Millisecond,
			Lease: 150 * time.Millisecond}
	})
	servers := make([]string, 3)
	for i, n := range nodes {
		servers[i] = status(t, n).Node.ServerID
	}
	rounds := 4
	if s := os.Getenv("QUORATE_FAULT_ROUNDS"); s != "" {
		rounds, _ = strconv.Atoi(s)
	}
	h := history.NewKeys(history.WallClock())
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 6 {
		rnd := rand.New(rand.NewPCG(seed, uint64(i+2))) //nolint:gosec // see above
		c := &regClient{id: i, nodes: nodes, rnd: rnd, http: http.Client{Timeout: 3 * time.Second},
			seen: map[string]seenValue{}, h: h}
		wg.Go(func() { c.run(ctx) })
	}
	for range rounds {
		calm := h.Size()
		poll(t, func() error { // wait for 100 operations without faults
			if n := h.Size() - calm; n < 100 {
				return fmt.Errorf("only %d operations since the last fault", n)
			}
			return nil
		})
		at := leads(t, nodes)
		others := append(append([]string{}, servers[:at]...), servers[at+1:]...)
		switch rnd.IntN(4) {
		case 0:
			nodes[at].Isolate(others...)
		case 1:
			nodes[at].Deafen(false, others...)
		case 2:
			nodes[at].Deafen(true, others...)
		case 3: // only one of the two other servers can be reached
			nodes[at].Isolate(others[rnd.IntN(2)])
		}
		fault := time.NewTimer(time.Duration(300+rnd.IntN(900)) * time.Millisecond)
		<-fault.C
		nodes[at].Rejoin(others...)
		poll(t, func() error { // the cluster recovers from every sequence of faults
			if code, body := save(t, nodes[(at+1)%3], "healed", "1"); code != 204 {
				return fmt.Errorf("%d %s", code, body)
			}
			return nil
		})
	}
	cancel()
	wg.Wait()
	if err := h.Check(5*time.Minute, os.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Logf("linearizable: %s", h)
}
