package deploy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"
)

// failover is how long a client retries one write, on one node after the other. The cluster needs a few seconds; a
// slow machine may need more.
const failover = time.Minute

// ledger runs clients that write with strong consistency until acknowledged, and records what was
// acknowledged. Each client writes new keys, and one key that it overwrites.
type ledger struct {
	token string
	stop  context.CancelFunc
	wg    sync.WaitGroup

	mu      sync.Mutex
	nodes   []string          // URLs of the servers; guarded by mu, as are the fields below
	acked   map[string]string // key -> the value acknowledged last
	writes  int
	failed  []string
	retries int
	longest time.Duration // longest duration of a call
	last    time.Time     // time of the last acknowledgement
	gap     time.Duration // longest time without an acknowledgement
}

func startLedger(t *testing.T, clients int, token string, nodes []string) *ledger {
	ctx, cancel := context.WithCancel(context.Background())
	l := &ledger{token: token, stop: cancel, nodes: nodes, acked: map[string]string{}, last: time.Now()}
	t.Cleanup(l.end)
	for id := range clients {
		l.wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				value := fmt.Sprintf("value %d of client %d", n, id)
				l.save(ctx, fmt.Sprintf("ledger-%d-%d", id, n), value, id+n)
				l.save(ctx, fmt.Sprintf("ledger-%d", id), value, id+n)
			}
		})
	}
	return l
}

// move sets the current URLs of the servers.
func (l *ledger) move(nodes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes = nodes
}

func (l *ledger) at(i int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes[i%len(l.nodes)]
}

// save writes a key. For at most failover, it tries one node after the other with the same request id until the write
// is acknowledged. It continues after the end of ctx, because a write without a result would leave the value of the
// key unknown.
func (l *ledger) save(ctx context.Context, key, value string, first int) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), failover)
	defer cancel()
	body, err := json.Marshal([]map[string]any{{"key": key, "value": value,
		"options": map[string]string{"consistency": "strong"}}})
	begin, attempt := time.Now(), 0
	for ; err == nil; attempt++ {
		if err = l.ask(bounded, l.at(first+attempt)+"/v1.0/state/statestore", key+"="+value, body, nil); err == nil ||
			bounded.Err() != nil {
			break
		}
		err = nil
		select {
		case <-time.After(50 * time.Millisecond):
		case <-bounded.Done():
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.retries += attempt
	l.longest = max(l.longest, now.Sub(begin))
	if err != nil {
		l.failed = append(l.failed, fmt.Sprintf("%s: %v", key, err))
		return
	}
	l.acked[key] = value
	l.writes++
	l.gap, l.last = max(l.gap, now.Sub(l.last)), now
}

// ask posts to a node and decodes the response into answer.
func (l *ledger) ask(ctx context.Context, url, id string, body []byte, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // short, because there are other nodes
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("dapr-api-token", l.token)
	if id != "" {
		req.Header.Set("Quorate-Request-Id", id)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("%s: %s", resp.Status, text)
	case answer == nil:
		return nil
	}
	return json.Unmarshal(text, answer)
}

// end stops the clients after their current writes.
func (l *ledger) end() {
	l.stop()
	l.wg.Wait()
	http.DefaultClient.CloseIdleConnections()
}

// written returns the number of acknowledged writes.
func (l *ledger) written() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writes
}

func (l *ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d writes acknowledged, %d attempts repeated, %d failed; longest call %v, longest time "+
		"without an acknowledgement %v",
		l.writes, l.retries, len(l.failed), l.longest.Round(time.Millisecond), l.gap.Round(time.Millisecond))
}

// check reads everything again with strong consistency, at the servers in turn.
func (l *ledger) check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.failed {
		t.Errorf("not done within %v: %s", failover, f)
	}
	var keys []string
	for key := range l.acked {
		keys = append(keys, key)
	}
	const batch = 200
	for from := 0; from < len(keys); from += batch {
		some := keys[from:min(from+batch, len(keys))]
		got, err := l.read(t.Context(), l.nodes[from/batch%len(l.nodes)], some)
		if err != nil {
			t.Fatalf("reading what was acknowledged: %v", err)
		}
		for _, key := range some {
			if got[key] != l.acked[key] {
				t.Errorf("%s is %q, and %q was acknowledged", key, got[key], l.acked[key])
			}
		}
	}
}

func (l *ledger) read(ctx context.Context, node string, keys []string) (map[string]string, error) {
	body, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		return nil, err
	}
	var items []struct {
		Key, Error string
		Data       string
	}
	if err := l.ask(ctx, node+"/v1.0/state/statestore/bulk?consistency=strong", "", body, &items); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, i := range items {
		if i.Error != "" {
			return nil, errors.New(i.Key + ": " + i.Error)
		}
		out[i.Key] = i.Data
	}
	return out, nil
}
