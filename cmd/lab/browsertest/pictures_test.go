package browsertest

import (
	"context"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestPictures takes the pictures of the documentation. It takes them after two minutes, when the charts are full.
func TestPictures(t *testing.T) {
	dir := os.Getenv("PICTURES")
	if dir == "" {
		t.Skip("PICTURES does not name a directory")
	}
	nodes := startCluster(t, "--console-write", "--cluster-token-file", tokenFile(t))
	nodes[0].save(t, `[{"key":"order-1","value":{"item":"lamp","total":12.5,"address":{"city":"Oslo"}},
		"metadata":{"ttlInSeconds":"7200"}},{"key":"order-2","value":"text"},{"key":"order-3","value":[1,2]},
		{"key":"cart-7","value":{"lines":[{"item":"lamp","count":2}]}}]`)
	work(t, nodes)
	traffic(t, nodes)
	b := openBrowser(t, nodes[0])
	<-time.After(2 * time.Minute)
	b.run(chromedp.EmulateViewport(1280, 860), scheme("light"))
	b.shoot(dir, "console-overview")
	b.open("/applications")
	b.shoot(dir, "console-applications")
	b.run(scheme("dark"))
	b.open("/state?app=app-a&store=statestore&key=order-1")
	b.shoot(dir, "console-state")
}

// traffic sends requests to all nodes until the test ends. One call in 50 fails.
func traffic(t *testing.T, nodes []*node) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	send := func(n *node, pause time.Duration, method, path, body string) {
		all.Go(func() {
			for i := 1; ctx.Err() == nil; i++ {
				to := path
				if i%50 == 0 {
					to = strings.Replace(to, "pay", "fail", 1)
				}
				r, err := http.NewRequestWithContext(ctx, method, n.Base()+"/v1.0/"+to, strings.NewReader(body))
				if err != nil {
					return
				}
				if answer, err := http.DefaultClient.Do(r); err == nil {
					_ = answer.Body.Close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(pause + time.Duration(i%7)*pause/5):
				}
			}
		})
	}
	for _, n := range nodes {
		send(n, 40*time.Millisecond, http.MethodPost, "state/statestore", `[{"key":"hits","value":1}]`)
		send(n, 10*time.Millisecond, http.MethodGet, "state/statestore/hits", "")
	}
	send(nodes[0], 20*time.Millisecond, http.MethodGet, "invoke/app-b/method/stock", "")
	send(nodes[0], 30*time.Millisecond, http.MethodGet, "invoke/app-c/method/pay", "")
	send(nodes[1], 60*time.Millisecond, http.MethodGet, "invoke/app-c/method/pay", "")
	send(nodes[2], 90*time.Millisecond, http.MethodGet, "invoke/app-a/method/receipt", "")
	t.Cleanup(func() { cancel(); all.Wait() })
}
