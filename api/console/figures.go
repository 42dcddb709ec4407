package console

import (
	"math"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
)

// Rates are figures of one node per second, between two views.
type Rates struct {
	Known    bool // false = there is only one view yet
	Requests float64
	Errors   float64
	P99      float64 // seconds; NaN = no request
	SyncP99  float64 // seconds; NaN = no write
	Entries  float64
	LogBytes float64
	CPU      float64 // cores
}

// ratesOf returns the rates of a node between two of its views. The rates are unknown if a view is missing, the node
// has restarted between the views, or the views are less than 100 ms apart.
func ratesOf(older, newer *schema.NodeView) Rates {
	if older == nil || newer == nil || !older.Status.Node.Started.Equal(newer.Status.Node.Started) {
		return Rates{P99: math.NaN(), SyncP99: math.NaN()}
	}
	took := newer.At.Sub(older.At)
	if took < 100*time.Millisecond {
		return Rates{P99: math.NaN(), SyncP99: math.NaN()}
	}
	a, b := &older.Figures, &newer.Figures
	per := func(from, to uint64) float64 { return float64(grown(from, to)) / took.Seconds() }
	return Rates{
		Known: true, Requests: per(a.Requests, b.Requests), Errors: per(a.Errors, b.Errors),
		P99: quantile(since(a.Latency, b.Latency), 0.99), SyncP99: quantile(since(a.Sync, b.Sync), 0.99),
		Entries: per(a.Entries, b.Entries), LogBytes: per(a.LogBytes, b.LogBytes),
		CPU: max(0, b.CPUSeconds-a.CPUSeconds) / took.Seconds(),
	}
}

// grown returns the growth of a counter.
func grown(from, to uint64) uint64 {
	if to < from {
		return to // the counter began again
	}
	return to - from
}

// since returns what was added to a histogram from o to h.
func since(o, h schema.Histogram) schema.Histogram {
	if len(o.Counts) != len(h.Counts) {
		return h
	}
	out := schema.Histogram{Bounds: h.Bounds, Counts: make([]uint64, len(h.Counts)), Total: grown(o.Total, h.Total)}
	for i := range h.Counts {
		out.Counts[i] = grown(o.Counts[i], h.Counts[i])
	}
	return out
}

// quantile returns the q-quantile of h, computed like histogram_quantile of Prometheus. It returns NaN if h is empty,
// and the last bound if the quantile is above it.
func quantile(h schema.Histogram, q float64) float64 {
	if h.Total == 0 || len(h.Bounds) == 0 {
		return math.NaN()
	}
	rank, low, below := q*float64(h.Total), 0.0, uint64(0)
	for i, n := range h.Counts {
		if float64(n) >= rank {
			if n == below {
				return h.Bounds[i]
			}
			return low + (h.Bounds[i]-low)*(rank-float64(below))/float64(n-below)
		}
		low, below = h.Bounds[i], n
	}
	return h.Bounds[len(h.Bounds)-1]
}
