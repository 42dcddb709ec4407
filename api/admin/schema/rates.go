package schema

import (
	"math"
	"time"
)

// Rates are averages over the time between two views of one node. Requests, Errors, Entries and LogBytes are per
// second.
type Rates struct {
	Known    bool // false = the rates could not be computed
	Requests float64
	Errors   float64
	P50      float64 // seconds; NaN = no request
	P99      float64 // seconds; NaN = no request
	SyncP99  float64 // seconds; NaN = no write
	Entries  float64
	LogBytes float64
	CPU      float64 // cores
}

// RatesBetween computes the rates of a node from two of its views. The rates are unknown if a view is missing, if the
// node has restarted between the views, or if the views are less than 100 ms apart.
func RatesBetween(older, newer *NodeView) Rates {
	unknown := Rates{P50: math.NaN(), P99: math.NaN(), SyncP99: math.NaN()}
	if older == nil || newer == nil || !older.Status.Node.Started.Equal(newer.Status.Node.Started) {
		return unknown
	}
	took := newer.At.Sub(older.At)
	if took < 100*time.Millisecond {
		return unknown
	}
	a, b := &older.Figures, &newer.Figures
	per := func(from, to uint64) float64 { return float64(Grown(from, to)) / took.Seconds() }
	latency := b.Latency.Since(a.Latency)
	return Rates{
		Known: true, Requests: per(a.Requests, b.Requests), Errors: per(a.Errors, b.Errors),
		P50: latency.Quantile(0.5), P99: latency.Quantile(0.99), SyncP99: b.Sync.Since(a.Sync).Quantile(0.99),
		Entries: per(a.Entries, b.Entries), LogBytes: per(a.LogBytes, b.LogBytes),
		CPU: max(0, b.CPUSeconds-a.CPUSeconds) / took.Seconds(),
	}
}

// Grown returns the increase of a counter from an older to a newer value. If the newer value is less than the older
// one, the counter has restarted at 0, so the increase is the newer value.
func Grown(from, to uint64) uint64 {
	if to < from {
		return to // the counter began again
	}
	return to - from
}

// Since compares h with o, an earlier state of h. It returns the histogram of the values that were added in the
// meantime. If h and o have different numbers of buckets, Since returns h.
func (h Histogram) Since(o Histogram) Histogram {
	if len(o.Counts) != len(h.Counts) {
		return h
	}
	out := Histogram{Bounds: h.Bounds, Counts: make([]uint64, len(h.Counts)), Total: Grown(o.Total, h.Total)}
	for i := range h.Counts {
		out.Counts[i] = Grown(o.Counts[i], h.Counts[i])
	}
	return out
}

// Quantile returns the q-quantile of h, computed like histogram_quantile of Prometheus. It returns NaN if h is
// empty. If the quantile is greater than the last bound, it returns the last bound.
func (h Histogram) Quantile(q float64) float64 {
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
