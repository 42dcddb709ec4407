package node_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// BenchmarkGRPC alternates gets and saves over gRPC with the same requests over HTTP, on one node. Clients and node
// share the processors. So there are two HTTP clients: net/http costs as much as a real client, and a minimal client
// shows the cost of the server. x-http and x-bare are the rate of gRPC, divided by the rates of these two clients. All
// goroutines share one gRPC connection, as in the SDKs.
func BenchmarkGRPC(b *testing.B) {
	const keys = 1000
	value := strings.Repeat("v", benchBytes)
	n := open(b, config(b))
	addr := n.Addresses().API[0]
	run(b, dialAll(b, addr, 8), keys, "204", func(_, i int) []byte { return saveRequest(i-1, value, "strong") })
	conn, err := grpc.NewClient("passthrough:///"+n.Addresses().GRPC[0],
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	remote := runtimev1.NewDaprClient(conn)
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
	defer web.CloseIdleConnections()
	levels := map[string]commonv1.StateOptions_StateConsistency{
		"eventual": commonv1.StateOptions_CONSISTENCY_EVENTUAL,
		"strong":   commonv1.StateOptions_CONSISTENCY_STRONG,
	}
	for _, level := range []string{"eventual", "strong"} {
		for _, clients := range []int{1, 64, 512} {
			b.Run(fmt.Sprintf("get/%s/clients=%d", level, clients), func(b *testing.B) {
				bare := dialAll(b, addr, clients)
				inTurns(b,
					each(b, clients, func(i int) error {
						_, err := remote.GetState(context.Background(),
							&runtimev1.GetStateRequest{StoreName: "statestore", Key: "k" + strconv.Itoa(i%keys),
								Consistency: levels[level]})
						return err
					}),
					each(b, clients, func(i int) error {
						url := "http://" + addr + "/v1.0/state/statestore/k" + strconv.Itoa(i%keys)
						url += "?consistency=" + level
						return answer(web.Get(url)) //nolint:noctx
					}),
					func(k int) time.Duration {
						return run(b, bare, k, "200", func(_, i int) []byte {
							return getRequest("/v1.0/state/statestore/k" + strconv.Itoa(i%keys) + "?consistency=" +
								level)
						})
					})
			})
			b.Run(fmt.Sprintf("save/%s/clients=%d", level, clients), func(b *testing.B) {
				bare := dialAll(b, addr, clients)
				inTurns(b,
					each(b, clients, func(i int) error {
						_, err := remote.SaveState(context.Background(),
							&runtimev1.SaveStateRequest{StoreName: "statestore", States: []*commonv1.StateItem{{
								Key: "k" + strconv.Itoa(i%keys), Value: []byte(`"` + value + `"`),
								Options: &commonv1.StateOptions{Consistency: levels[level]}}}})
						return err
					}),
					each(b, clients, func(i int) error {
						body := `[{"key":"k` + strconv.Itoa(i%keys) + `","value":"` + value +
							`","options":{"consistency":"` + level + `"}}]`
						url := "http://" + addr + "/v1.0/state/statestore"
						return answer(web.Post(url, "application/json", strings.NewReader(body))) //nolint:noctx
					}),
					func(k int) time.Duration {
						return run(b, bare, k, "204", func(_, i int) []byte {
							return saveRequest(i%keys, value, level)
						})
					})
			})
		}
	}
}

// answer reads an HTTP answer to its end. It returns an error if the status is above 299.
func answer(r *http.Response, err error) error {
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode > 299 {
		return fmt.Errorf("answered %s", r.Status)
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err
}

// each returns a function that makes n requests from several goroutines, and returns how long they took.
func each(b *testing.B, clients int, do func(i int) error) func(n int) time.Duration {
	return func(n int) time.Duration {
		var next atomic.Int64
		var all sync.WaitGroup
		start := time.Now()
		for range clients {
			all.Go(func() {
				for i := next.Add(1); i <= int64(n); i = next.Add(1) {
					if err := do(int(i)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		return time.Since(start)
	}
}

// inTurns runs gRPC, HTTP and HTTP with the bare client in turns.
func inTurns(b *testing.B, turns ...func(n int) time.Duration) {
	b.Helper()
	took := measure(b, turns...)
	n := float64((b.N/rounds + 1) * rounds)
	b.ReportMetric(n/took[0].Seconds(), "grpc/s")
	b.ReportMetric(n/took[1].Seconds(), "http/s")
	b.ReportMetric(n/took[2].Seconds(), "bare/s")
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "x-http")
	b.ReportMetric(took[2].Seconds()/took[0].Seconds(), "x-bare")
}
