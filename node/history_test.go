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

	"github.com/anishathalye/porcupine"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/raftfsm/group"
)

// register is one key as the clients see it through the API. An operation with an unknown outcome may have taken
// effect at any later moment, or never.
type register struct {
	value, etag string // empty etag = absent
}

type regOp struct {
	kind  string // get, set, cas, create, delete
	key   int
	value string
	etag  string // cas: the condition
}

type regResult struct {
	value    string
	found    bool
	etag     string // get: what was read
	conflict bool
	unknown  bool
}

// regModel is the sequential specification. A state has the set of ETags that the value may have, because the answer
// to a write does not contain the ETag.
func regModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(h []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[int][]porcupine.Operation{}
			for _, o := range h {
				k := o.Input.(regOp).key
				byKey[k] = append(byKey[k], o)
			}
			var out [][]porcupine.Operation
			for _, p := range byKey {
				out = append(out, p)
			}
			return out
		},
		Init: func() []any { return []any{register{}} },
		Step: func(s, in, out any) []any { return step(s.(register), in.(regOp), out.(regResult)) },
	}
	return m.ToModel()
}

// unread stands for the ETag of a value that no client has read yet.
const unread = "?"

func step(s register, in regOp, out regResult) []any {
	exists := s.etag != ""
	written := register{value: in.value, etag: unread}
	switch in.kind {
	case "get":
		if out.unknown {
			return []any{s}
		}
		if out.found != exists || (exists && (out.value != s.value || (s.etag != unread && s.etag != out.etag))) {
			return nil
		}
		if exists {
			s.etag = out.etag
		}
		return []any{s}
	case "set":
		return maybe(s, written, out, true, true)
	case "delete":
		return maybe(s, register{}, out, true, true)
	case "create":
		return maybe(s, written, out, !exists, exists)
	default: // cas; an unread ETag may equal the condition
		return maybe(s, written, out, exists && (s.etag == in.etag || s.etag == unread), !exists || s.etag != in.etag)
	}
}

// maybe returns the possible next states of a write in state s. may means that the write can succeed, and mayNot
// that it can conflict.
func maybe(s, next register, out regResult, may, mayNot bool) []any {
	switch {
	case out.unknown && may:
		return []any{s, next}
	case out.unknown || (out.conflict && mayNot):
		return []any{s}
	case !out.conflict && may:
		return []any{next}
	}
	return nil
}

// history records the operations of several clients.
type history struct {
	mu    sync.Mutex
	begun time.Time
	ops   []porcupine.Operation
}

func (h *history) add(client int, in regOp, out regResult, call, ret time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if out.unknown {
		ret = time.Hour // it may take effect at any later time
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: int64(call),
		Return: int64(ret)})
}

func (h *history) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops)
}

// regClient makes random strong requests to random nodes.
type regClient struct {
	id    int
	nodes []*node.Node
	rnd   *rand.Rand
	http  http.Client
	etags map[int]string
	h     *history
	count int
}

func (c *regClient) run(ctx context.Context) {
	for ctx.Err() == nil {
		c.count++
		in := regOp{key: c.rnd.IntN(3), value: fmt.Sprintf("c%d-%d", c.id, c.count)}
		switch p := c.rnd.IntN(10); {
		case p < 4:
			in.kind = "get"
		case p < 6:
			in.kind = "set"
		case p < 7:
			in.kind = "delete"
		case p < 8:
			in.kind = "create"
		default:
			in.kind, in.etag = "cas", c.etags[in.key]
			if in.etag == "" {
				in.kind = "get"
			}
		}
		begin := time.Since(c.h.begun)
		out, done := c.do(in)
		if done {
			c.h.add(c.id, in, out, begin, time.Since(c.h.begun))
		}
	}
}

// do executes one operation. done is false if the operation certainly had no effect and returned nothing.
func (c *regClient) do(in regOp) (out regResult, done bool) {
	base := "http://" + c.nodes[c.rnd.IntN(len(c.nodes))].Addresses().API[0] + "/v1.0/state/statestore"
	key := "k" + strconv.Itoa(in.key)
	method, url, body := http.MethodPost, base, ""
	switch in.kind {
	case "get":
		method, url = http.MethodGet, base+"/"+key+"?consistency=strong"
	case "delete":
		method, url = http.MethodDelete, base+"/"+key+"?consistency=strong"
	case "set":
		body = fmt.Sprintf(`[{"key":%q,"value":%q,"options":{"consistency":"strong"}}]`, key, in.value)
	case "create":
		body = fmt.Sprintf(`[{"key":%q,"value":%q,"options":{"consistency":"strong","concurrency":"first-write"}}]`,
			key, in.value)
	case "cas":
		body = fmt.Sprintf(`[{"key":%q,"value":%q,"etag":%q,"options":{"consistency":"strong"}}]`, key, in.value,
			in.etag)
	}
	req, err := http.NewRequest(method, url, bytes.NewBufferString(body)) //nolint:noctx // the client has a time-out
	if err != nil {
		return out, false
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return regResult{unknown: true}, in.kind != "get"
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return regResult{unknown: true}, in.kind != "get"
	case resp.StatusCode == 200:
		c.etags[in.key] = resp.Header.Get("Etag")
		var value string
		if json.Unmarshal(text, &value) != nil {
			value = string(text)
		}
		return regResult{found: true, value: value, etag: resp.Header.Get("Etag")}, true
	case resp.StatusCode == 204:
		return out, true
	case resp.StatusCode == 409:
		return regResult{conflict: true}, true
	case bytes.Contains(text, []byte(`"reason":"indeterminate"`)):
		return regResult{unknown: true}, in.kind != "get"
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
	// Requests to a node that is cut off end soon, so that clients go on elsewhere.
	nodes, _ := threeWith(t, func(c *node.Config) {
		c.API.RequestTimeout = 400 * time.Millisecond
		// elections within a fault
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
	h := &history{begun: time.Now()}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 6 {
		rnd := rand.New(rand.NewPCG(seed, uint64(i+2))) //nolint:gosec // see above
		c := &regClient{id: i, nodes: nodes, rnd: rnd, http: http.Client{Timeout: 3 * time.Second},
			etags: map[int]string{}, h: h}
		wg.Go(func() { c.run(ctx) })
	}
	for range rounds {
		calm := h.size()
		poll(t, func() error { // waits for a number of operations without faults
			if n := h.size() - calm; n < 100 {
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
		case 3: // a bridge: only one of the two can be reached
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
	result, info := porcupine.CheckOperationsVerbose(regModel(), h.ops, 5*time.Minute)
	if result != porcupine.Ok {
		path := t.TempDir() + "/history.html"
		if f, err := os.CreateTemp("", "history-*.html"); err == nil {
			path = f.Name()
			_ = porcupine.Visualize(regModel(), info, f)
			_ = f.Close()
		}
		t.Fatalf("the history of %d operations is %s; see %s", len(h.ops), result, path)
	}
	t.Logf("%d operations are linearizable", len(h.ops))
}
