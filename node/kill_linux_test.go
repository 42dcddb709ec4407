package node_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/testutil"
)

// killed is what the writer of a key knows. acknowledged is the greatest number whose save was answered with 204,
// and sent is the greatest number that was sent.
type killed struct {
	acknowledged, sent int
	etag               uint64 // the greatest ETag that was seen
}

// writer saves growing numbers under its own keys until the node has ended.
func writer(addr, level string, id int, keys map[string]*killed, acks *atomic.Int64) {
	client := http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	for n := 0; ; n++ {
		key := fmt.Sprintf("w%d-%d", id, n%10)
		k := keys[key]
		k.sent++
		body := fmt.Sprintf(`[{"key":%q,"value":%d,"options":{"consistency":%q}}]`, key, k.sent, level)
		url := "http://" + addr + "/v1.0/state/statestore"
		resp, err := client.Post(url, "application/json", bytes.NewBufferString(body)) //nolint:noctx // has a time-out
		if err != nil {
			return
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNoContent {
			return
		}
		k.acknowledged = k.sent
		acks.Add(1)
	}
}

// check reads every key after a restart. It fails the test if an acknowledged write is lost.
func (c *child) check(t *testing.T, all []map[string]*killed) {
	t.Helper()
	for _, keys := range all {
		for key, k := range keys {
			url := "http://" + c.addr + "/v1.0/state/statestore/" + key + "?consistency=strong"
			resp, err := http.Get(url) //nolint:noctx,gosec // loopback
			if err != nil {
				t.Fatalf("%v\n%s", err, c.stderr.String())
			}
			text, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			have := 0
			if resp.StatusCode == http.StatusOK {
				if err := json.Unmarshal(text, &have); err != nil {
					t.Fatalf("%s holds %q", key, text)
				}
			}
			if have < k.acknowledged || have > k.sent {
				t.Errorf("%s holds %d; %d was acknowledged, %d was sent", key, have, k.acknowledged, k.sent)
			}
			etag, _ := strconv.ParseUint(resp.Header.Get("Etag"), 10, 64)
			if etag < k.etag {
				t.Errorf("%s: ETag %d after %d", key, etag, k.etag)
			}
			k.etag, k.acknowledged = etag, have
		}
	}
}

// All acknowledged writes, strong or eventual, survive a kill -9 at any moment. The test kills a node on one directory
// repeatedly.
func TestKill_LosesNoAcknowledgedWrite(t *testing.T) {
	testutil.SkipUnderRace(t, "starts and kills processes, which run without the detector")
	if testing.Short() {
		t.Skip("kills or ends a node again and again")
	}
	rounds := 6
	if s := os.Getenv("QUORATE_CRASH_ROUNDS"); s != "" {
		rounds, _ = strconv.Atoi(s)
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("QUORATE_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("QUORATE_SEED=%d", seed)
	for _, log := range []string{"boltdb", "wal"} {
		t.Run(log, func(t *testing.T) {
			t.Setenv(childLog, log)
			rnd := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a schedule, not a secret
			dir := filepath.Join(t.TempDir(), "data")
			all := make([]map[string]*killed, 6)
			for i := range all {
				all[i] = map[string]*killed{}
				for k := range 10 {
					all[i][fmt.Sprintf("w%d-%d", i, k)] = &killed{}
				}
			}
			total := int64(0)
			for range rounds {
				c := startChild(t, dir)
				if c.addr == "" {
					t.Fatalf("the node does not start again: %s", c.end(t))
				}
				c.check(t, all)
				var acks atomic.Int64
				var wg sync.WaitGroup
				for i := range all {
					wg.Go(func() { writer(c.addr, []string{"strong", "eventual"}[i%2], i, all[i], &acks) })
				}
				until := rnd.Int64N(1200) + 50
				waitFor(t, func() bool { return acks.Load() >= until })
				_ = c.cmd.Process.Kill()
				wg.Wait()
				c.end(t)
				total += acks.Load()
			}
			last := startChild(t, dir)
			last.check(t, all)
			_ = last.cmd.Process.Kill()
			last.end(t)
			t.Logf("%d acknowledged writes in %d rounds", total, rounds)
		})
	}
}
