package overview

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/quorate/quorate/api/admin/schema"
)

// figuresOf reads the figures of the console from the metrics of a node.
func figuresOf(families []*dto.MetricFamily) (f schema.Figures) {
	take := takers(&f)
	for _, family := range families {
		if add := take[family.GetName()]; add != nil {
			for _, m := range family.GetMetric() {
				add(sample{m})
			}
		}
	}
	for _, list := range []*[]schema.NamedCount{&f.Connections, &f.Stores, &f.StoreErrors, &f.Bindings, &f.GroupLogs} {
		*list = merged(*list)
	}
	f.Calls = mergedCalls(f.Calls)
	return f
}

// takers returns a function for each metric, by the name of the metric. The function adds one sample of the metric to
// f.
func takers(f *schema.Figures) map[string]func(sample) {
	count := func(to *[]schema.NamedCount, name, part string) func(sample) {
		return func(s sample) {
			*to = append(*to, schema.NamedCount{Name: s.label(name), Part: s.label(part), Value: s.value()})
		}
	}
	kind := func(name string) func(sample) {
		return func(s sample) {
			f.Connections = append(f.Connections, schema.NamedCount{Name: cmp.Or(s.label("listener"), name),
				Value: s.value()})
		}
	}
	gauge := func(to *float64) func(sample) { return func(s sample) { *to += s.value() } }
	total := func(to *uint64) func(sample) { return func(s sample) { *to += uint64(s.value()) } }
	latency := func(s sample) { f.Latency.Add(s.histogram()) }
	return map[string]func(sample){
		"quorate_http_requests_total": func(s sample) {
			f.Requests += uint64(s.value())
			if strings.HasPrefix(s.label("status"), "5") {
				f.Errors += uint64(s.value())
			}
		},
		"quorate_grpc_requests_total": func(s sample) {
			f.Requests += uint64(s.value())
			if slices.Contains(serverErrors(), s.label("code")) {
				f.Errors += uint64(s.value())
			}
		},
		"quorate_http_request_duration_seconds": latency,
		"quorate_grpc_request_duration_seconds": latency,
		"quorate_raft_log_append_seconds":       func(s sample) { f.Sync.Add(s.histogram()) },
		"quorate_raft_log_append_entries": func(s sample) {
			n := s.m.GetHistogram().GetSampleSum()
			f.Entries += uint64(n)
			f.GroupLogs = append(f.GroupLogs, schema.NamedCount{Name: s.label("group"), Value: n})
		},
		"quorate_raft_log_append_bytes_total": total(&f.LogBytes),
		"quorate_raft_snapshot_seconds":       func(s sample) { f.Snapshots += s.m.GetHistogram().GetSampleCount() },
		"quorate_raft_elections_total":        total(&f.Elections),
		"quorate_reloads_total":               total(&f.Reloads),
		"quorate_reload_ok":                   func(s sample) { f.ReloadFailed = s.value() == 0 },
		"process_cpu_seconds_total":           gauge(&f.CPUSeconds),
		"process_resident_memory_bytes":       gauge(&f.Memory),
		"go_memstats_heap_inuse_bytes":        gauge(&f.Heap),
		"go_threads":                          gauge(&f.Threads),
		"go_goroutines":                       gauge(&f.Goroutines),
		"process_open_fds":                    gauge(&f.Files),
		"quorate_store_disk_free_bytes":       gauge(&f.DiskFree),
		"quorate_http_connections":            kind(""),
		"quorate_grpc_connections":            kind("grpc"),
		"quorate_peer_connections": func(s sample) {
			f.Connections = append(f.Connections, schema.NamedCount{Name: "peer " + s.label("direction"),
				Value: s.value()})
		},
		"quorate_state_requests_total":                            func(s sample) { addStoreCall(f, s) },
		"quorate_binding_operations_total":                        count(&f.Bindings, "binding", "outcome"),
		"quorate_binding_events_total":                            count(&f.Bindings, "binding", "outcome"),
		"quorate_invoke_requests_total":                           func(s sample) { addCall(f, s) },
		"quorate_reload_last_timestamp_seconds":                   gauge(&f.ReloadedAt),
		"quorate_store_backup_last_success_timestamp_seconds":     gauge(&f.Backup.Last),
		"quorate_scheduled_backup_last_success_timestamp_seconds": gauge(&f.Backup.Scheduled),
		"quorate_scheduled_backup_interval_seconds":               gauge(&f.Backup.Every),
		"quorate_scheduled_backup_failing":                        func(s sample) { f.Backup.Failing = s.value() == 1 },
	}
}

// serverErrors are the gRPC codes of calls that failed on the server.
func serverErrors() []string {
	return []string{"Unknown", "DeadlineExceeded", "Unimplemented", "Internal", "Unavailable", "DataLoss"}
}

// addStoreCall adds a sample of calls to a state store. A failure that the request itself has caused, for example an
// ETag that does not match, does not count as an error.
func addStoreCall(f *schema.Figures, s sample) {
	store := s.label("store")
	f.Stores = append(f.Stores, schema.NamedCount{Name: store, Part: s.label("operation"), Value: s.value()})
	switch s.label("outcome") {
	case "unavailable", "read_only", "format_blocked", "overloaded", "indeterminate", "timeout", "internal", "corrupt":
		f.StoreErrors = append(f.StoreErrors, schema.NamedCount{Name: store, Value: s.value()})
	}
}

// addCall adds a sample of calls between applications. It skips the samples of the called node, because the calling
// node has counted the same calls.
func addCall(f *schema.Figures, s sample) {
	if s.label("hop") != "caller" {
		return
	}
	c := schema.AppCalls{From: s.label("source"), To: s.label("target"), Count: uint64(s.value())}
	if status := s.label("status"); status == "error" || strings.HasPrefix(status, "5") {
		c.Errors = c.Count
	}
	f.Calls = append(f.Calls, c)
}

// sample is one sample of a metric.
type sample struct{ m *dto.Metric }

func (s sample) label(name string) string {
	for _, l := range s.m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func (s sample) value() float64 {
	if s.m.GetCounter() != nil {
		return s.m.GetCounter().GetValue()
	}
	return s.m.GetGauge().GetValue()
}

func (s sample) histogram() schema.Histogram {
	h := s.m.GetHistogram()
	out := schema.Histogram{Total: h.GetSampleCount()}
	for _, b := range h.GetBucket() {
		out.Bounds = append(out.Bounds, b.GetUpperBound())
		out.Counts = append(out.Counts, b.GetCumulativeCount())
	}
	return out
}

// merged sorts counts by name and part, and adds up counts with the same name and part.
func merged(in []schema.NamedCount) (out []schema.NamedCount) {
	sort.Slice(in, func(i, k int) bool {
		return cmp.Or(cmp.Compare(in[i].Name, in[k].Name), cmp.Compare(in[i].Part, in[k].Part)) < 0
	})
	for _, c := range in {
		if n := len(out); n > 0 && out[n-1].Name == c.Name && out[n-1].Part == c.Part {
			out[n-1].Value += c.Value
			continue
		}
		out = append(out, c)
	}
	return out
}

// mergedCalls sorts calls by From and To, and adds up calls with the same From and To.
func mergedCalls(in []schema.AppCalls) (out []schema.AppCalls) {
	sort.Slice(in, func(i, k int) bool {
		return cmp.Or(cmp.Compare(in[i].From, in[k].From), cmp.Compare(in[i].To, in[k].To)) < 0
	})
	for _, c := range in {
		if n := len(out); n > 0 && out[n-1].From == c.From && out[n-1].To == c.To {
			out[n-1].Count += c.Count
			out[n-1].Errors += c.Errors
			continue
		}
		out = append(out, c)
	}
	return out
}
