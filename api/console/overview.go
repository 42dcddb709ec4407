package console

import (
	"math"

	"github.com/quorate/quorate/api/admin/schema"
)

// overviewBody renders the first page: present problems, the rates of the whole cluster, its nodes and its groups.
func overviewBody(r *request) (html, error) {
	s := r.snap
	return r.totals() + card("alerts", "Problems now", alertList(s.alerts())) +
		card("nodes", "Nodes", nodeTable(s)) + card("groups", "Groups", groupTable(s)), nil
}

// totals renders the figures of the whole cluster.
func (r *request) totals() html {
	s, sum := r.snap, schema.Rates{}
	var keys, disk float64
	for _, m := range s.Members {
		one := s.Rates[m.Node]
		sum.Known = sum.Known || one.Known
		sum.Requests, sum.Errors = sum.Requests+one.Requests, sum.Errors+one.Errors
		if !math.IsNaN(one.P99) {
			sum.P99 = max(sum.P99, one.P99)
		}
	}
	for _, one := range s.groups() {
		keys, disk = keys+float64(one.Keys), disk+float64(one.DiskBytes+one.LogBytes)
		for _, v := range one.Views {
			if v.State == "leader" {
				sum.Entries += s.entryRate(v.Node, one.ID)
			}
		}
	}
	if sum.P99 == 0 {
		sum.P99 = math.NaN()
	}
	all := s.sumPast()
	line := func(label, value, title string, pick func(Sample) float32) html {
		return figure(label, value, chart(title+" of the last minutes", series(all, pick)))
	}
	return figures("totals", "Figures of the cluster",
		line("Requests", perSecond(sum, sum.Requests), "requests per second",
			func(s Sample) float32 { return s.Requests })+
			line("Failed requests", perSecond(sum, sum.Errors), "failed requests per second",
				func(s Sample) float32 { return s.Errors })+
			line("Slowest p99", seconds(sum.P99), "99th percentile", func(s Sample) float32 { return s.P99 })+
			line("Log entries", perSecond(sum, sum.Entries), "log entries per second",
				func(s Sample) float32 { return s.Entries })+
			figure("Keys", number(keys), "")+figure("Data of one copy", size(disk), ""))
}

// entryRate returns the log entries per second of a group at a node.
func (s *Snapshot) entryRate(node string, group uint64) float64 {
	return s.Logs[logOf{node, group}]
}

// sumPast combines the samples of all nodes. It adds up requests, errors and CPU, and takes the largest latency. It
// also takes the largest number of log entries, because every replica appends the same entries.
func (s *Snapshot) sumPast() []Sample {
	longest := 0
	for _, one := range s.Past {
		longest = max(longest, len(one))
	}
	out := make([]Sample, longest)
	for _, one := range s.Past {
		for i, v := range one {
			at := &out[longest-len(one)+i]
			at.Requests, at.Errors, at.CPU = at.Requests+v.Requests, at.Errors+v.Errors, at.CPU+v.CPU
			at.Entries = max(at.Entries, v.Entries) // every replica appends the same entries
			if v.P99 == v.P99 {
				at.P99 = max(at.P99, v.P99)
			}
		}
	}
	return out
}

// alertList shows alerts.
func alertList(alerts []alert) html {
	if len(alerts) == 0 {
		return `<p class="empty">No problem is known.</p>`
	}
	var list []html
	for _, a := range alerts {
		word := "warning"
		if a.Level == levelFail {
			word = "error"
		}
		list = append(list, h(`<li>%<strong>%</strong><span class="dim">%</span><p>%</p></li>`, badge(a.Level, word),
			esc(a.Where), esc(a.Name), esc(a.Text)))
	}
	return h(`<ul class="alerts">%</ul>`, joined(list))
}
