package remoteinvoke_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// rounds is the number of measurements of each way. The ways are measured alternately, so that other load affects all
// of them.
const rounds = 5

// way is one way to reach the same application.
type way struct {
	name  string
	url   string
	rates []float64       // calls per second, by round
	times []time.Duration // durations of calls that were made one after the other
}

// waysTo starts an application that answers with a value, and returns the ways to reach it. The ways are: direct,
// through a reverse proxy of the standard library, through one node, and through two nodes.
func waysTo(b *testing.B, value string) []*way {
	b.Helper()
	a, here := pair(b, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, value)
	})
	target := &url.URL{Scheme: "http", Host: here.channel.Target()}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}
	plain := httptest.NewServer(proxy)
	b.Cleanup(plain.Close)
	b.Cleanup(proxy.Transport.(*http.Transport).CloseIdleConnections)
	const method = "/v1.0/invoke/web/method/orders/7"
	return []*way{
		{name: "direct", url: target.String() + "/orders/7"}, {name: "proxy", url: plain.URL + "/orders/7"},
		{name: "one-hop", url: here.url(method)}, {name: "two-hops", url: a.url(method)},
	}
}

// BenchmarkWays compares calls through one node and through two nodes with direct calls and with calls through a
// reverse proxy (see waysTo). Everything runs in this process.
func BenchmarkWays(b *testing.B) {
	ways := waysTo(b, `{"answer":42}`)
	c := client(b)
	c.Transport.(*http.Transport).MaxIdleConnsPerHost = 64
	for range b.N {
		for _, w := range ways {
			w.rates, w.times = nil, nil
		}
		for range rounds {
			for _, w := range ways {
				w.measure(b, c)
			}
		}
	}
	for _, w := range ways {
		b.ReportMetric(median(w.rates), w.name+"-calls/s")
		b.ReportMetric(float64(median(w.times).Microseconds()), w.name+"-us")
	}
	b.ReportMetric(median(ways[2].rates)/median(ways[1].rates), "one-hop-of-proxy")
	b.ReportMetric(median(ways[3].rates)/median(ways[1].rates), "two-hops-of-proxy")
}

func median[T ~float64 | ~int64](of []T) T {
	slices.Sort(of)
	return of[len(of)/2]
}

// measure makes calls from 32 clients at the same time, and then 50 calls one after the other.
func (w *way) measure(b *testing.B, c *http.Client) {
	const clients, calls, lone = 32, 50, 50
	var all sync.WaitGroup
	begun := time.Now()
	for range clients {
		all.Go(func() {
			for range calls {
				if err := w.call(c); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	w.rates = append(w.rates, clients*calls/time.Since(begun).Seconds())
	for range lone {
		begun := time.Now()
		if err := w.call(c); err != nil {
			b.Fatal(err)
		}
		w.times = append(w.times, time.Since(begun))
	}
}

func (w *way) call(c *http.Client) error {
	answer, err := c.Post(w.url, "application/json", strings.NewReader(`{"order":7,"items":[1,2,3]}`))
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %d", w.name, answer.StatusCode)
	}
	return err
}
