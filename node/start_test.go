package node_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

func TestStart_APIHoldsRequestsUntilStoreIsOpen(t *testing.T) {
	c := nodetest.Config(t)
	c.API.HTTP = node.Port{Number: nodetest.SparePort(t), Given: true}
	base := fmt.Sprintf("http://127.0.0.1:%d", c.API.HTTP.Number)
	opening, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d, registry := nodetest.Deps(t), prometheus.NewRegistry()
	d.Registry = registry
	d.Step = func(string) { // the store is being opened
		once.Do(func() {
			close(opening)
			<-proceed
		})
	}
	opened := make(chan *node.Node, 1)
	go func() {
		n, err := node.Open(t.Context(), c, d)
		if err != nil {
			t.Error(err)
		}
		opened <- n
	}()
	<-opening
	if status := statusOf(t, "GET", base+"/v1.0/healthz", ""); status != http.StatusInternalServerError {
		t.Errorf("healthz of a node that starts: %d", status)
	}
	saved := make(chan int, 1)
	go func() { saved <- statusOf(t, "POST", base+"/v1.0/state/statestore", `[{"key":"k","value":1}]`) }()
	nodetest.Poll(t, func() error { // the request has arrived, or was answered
		if len(saved) == 0 && gauge(t, registry, "quorate_http_requests_in_flight") == 0 {
			return errors.New("no request is in flight")
		}
		return nil
	})
	if len(saved) != 0 {
		t.Error("a request was answered before the store was open")
	}
	close(proceed)
	if status := <-saved; status != http.StatusNoContent {
		t.Errorf("the request that was held: %d", status)
	}
	if n := <-opened; n != nil {
		nodetest.Close(t, n)
	}
}

// gauge returns the sum of the series of a gauge.
func gauge(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func statusOf(t *testing.T, method, url, body string) int {
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0
	}
	answer, err := (&http.Client{Timeout: patience}).Do(r)
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}
