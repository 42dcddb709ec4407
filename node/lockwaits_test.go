package node_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// waitForLock waits for a lock until ctx ends, and returns the answer.
func waitForLock(ctx context.Context, n *node.Node, resource string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://"+n.Addresses().API[0]+"/v1.0/lock/lockstore?wait=5m",
		strings.NewReader(`{"resourceId":"`+resource+`","lockOwner":"waiter","expiryInSeconds":600}`))
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return string(answer), err
}

// A node that does not lead has more waiting callers than may wait at the leader. Its other calls to the leader must
// not wait for them.
func TestLocks_WaitingCallersDoNotBlockOtherCalls(t *testing.T) {
	t.Parallel()
	nodes, _ := nodetest.Three(t)
	n := nodes[(nodetest.Leader(t, nodes)+1)%len(nodes)]
	const locks, callers, limit = 5, 60, 256
	owner := func(do, resource string) (answer string) {
		_, answer, _ = nodetest.Ask(t, n, "POST", "/v1.0/"+do+"/lockstore",
			`{"resourceId":"`+resource+`","lockOwner":"owner","expiryInSeconds":600}`)
		return answer
	}
	answers := make(chan string, locks*callers)
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for i := range locks {
		resource := fmt.Sprint("r", i)
		if got := owner("lock", resource); got != `{"success":true}` {
			t.Fatalf("lock: %s", got)
		}
		for range callers {
			waiting.Go(func() {
				if got, err := waitForLock(ctx, n, resource); ctx.Err() == nil {
					answers <- fmt.Sprint(got, err)
				}
			})
		}
	}
	for range locks*callers - limit {
		select {
		case got := <-answers:
			if !strings.Contains(got, `"reason":"overloaded"`) {
				t.Errorf("a caller beyond the limit: %s", got)
			}
		case <-time.After(time.Minute):
			t.Error("a caller beyond the limit was not refused")
		}
		if t.Failed() {
			break
		}
	}
	if got := owner("unlock", "r0"); got != `{"status":0}` {
		t.Fatalf("unlock while others wait: %s", got)
	}
	if got := <-answers; got != `{"success":true}<nil>` {
		t.Errorf("the next owner: %s", got)
	}
	if code, body := nodetest.Save(t, n, "k", "v"); code != http.StatusNoContent {
		t.Errorf("a write while others wait: %d %s", code, body)
	}
}
