package eventgrid_test

import (
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/quorate/quorate/component/bindings/azure/eventgrid"
)

// TestDelivery_BatchOfTinyElementsTakesLittleMemory decodes bodies with lists of elements that are not events.
func TestDelivery_BatchOfTinyElementsTakesLittleMemory(t *testing.T) {
	const event = `{"specversion":"1.0","id":"a","source":"a","type":"a"}`
	h := http.Header{"Content-Type": {"application/cloudevents-batch+json"}}
	for name, body := range map[string]string{
		"numbers":         "[" + strings.Repeat("1,", 1<<20-1) + "1]",
		"empty objects":   "[" + strings.Repeat("{},", 700_000-1) + "{}]",
		"after an event":  "[" + event + "," + strings.Repeat("1,", 1<<19) + "1]",
		"not an array":    `{"a":1}`,
		"more than one":   "[" + event + "][" + event + "]",
		"without an end":  "[" + event,
		"empty":           "",
		"missing element": "[" + event + ",]",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := eventgrid.Events(h, []byte(body))
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 8 { // one of them is a copy of the body
			t.Errorf("%s: %d MiB were allocated", name, took)
		}
	}
	for body, want := range map[string]int{"[]": 0, " [ " + event + " , " + event + " ] ": 2} {
		if all, err := eventgrid.Events(h, []byte(body)); err != nil || len(all) != want {
			t.Errorf("%s: %d events, %v", body, len(all), err)
		}
	}
}
