package state_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

func metrics(t testing.TB, reg prometheus.Registerer) *state.Metrics {
	t.Helper()
	if reg == nil {
		reg = prometheus.NewRegistry()
	}
	m, err := state.NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// samples returns the values of all metrics. A key is the name of a metric, with its label values in braces, sorted
// by label name. For a histogram, the value is the count.
func samples(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			if name := strings.TrimPrefix(f.GetName(), "quorate_state_"); value != 0 {
				out[name+"{"+strings.Join(labels, ",")+"}"] = value
			}
		}
	}
	return out
}

func TestMetrics_OutcomeAndConsistency(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := metrics(t, reg)
	a := newAble()
	s := m.Instrument(a, "orders", state.Strong)
	ctx := t.Context()
	try := func(result error, call func() error) {
		t.Helper()
		a.err = result
		if err := call(); !errors.Is(err, result) {
			t.Fatalf("the call returned %v, want %v", err, result)
		}
	}
	get := func(level state.Consistency) func() error {
		return func() error {
			_, err := s.Get(ctx, state.GetRequest{Key: "k", ReadOptions: state.ReadOptions{Consistency: level}})
			return err
		}
	}
	set := func() error {
		_, err := s.Set(ctx, state.SetRequest{Items: []state.Write{{Value: make([]byte, 10)}, {Value: make([]byte, 5)}},
			Consistency: state.Eventual})
		return err
	}
	transact := func() error {
		_, err := state.AbilitiesOf(s).Transactor.Transact(ctx, state.TransactRequest{Operations: []state.Operation{
			{Write: state.Write{Value: make([]byte, 100)}},
			{Kind: state.Remove, Write: state.Write{Value: make([]byte, 1000)}},
		}})
		return err
	}
	bulk := func() error {
		_, err := state.AbilitiesOf(s).BulkGetter.BulkGet(ctx, state.BulkGetRequest{})
		return err
	}
	list := func() error {
		_, err := state.AbilitiesOf(s).Lister.List(ctx, state.ListRequest{})
		return err
	}
	remove := func() error {
		_, err := s.Delete(ctx, state.DeleteRequest{Consistency: 77})
		return err
	}
	conflict := fault.New(fault.Conflict, "test", "x")
	try(nil, get(state.Eventual))
	a.item = state.Item{ETag: "1", Value: make([]byte, 7)}
	try(nil, get(state.DefaultConsistency))
	a.item = state.Item{}
	try(errors.New("odd"), get(state.Strong))
	try(nil, set)
	try(conflict, set)
	try(conflict, remove)
	try(nil, transact)
	a.items = []state.Item{{Value: make([]byte, 20)}, {Err: fault.New(fault.Unavailable, "test", "x")}, {Err: conflict}}
	try(nil, bulk)
	a.page = state.Page{Items: []state.Item{{Value: make([]byte, 300)}}}
	try(nil, list)
	want := map[string]float64{
		"requests_total{eventual,get,not_found,orders}": 1, "requests_total{strong,get,ok,orders}": 1,
		"requests_total{strong,get,internal,orders}": 1,
		"requests_total{eventual,set,ok,orders}":     1, "requests_total{eventual,set,conflict,orders}": 1,
		"requests_total{strong,delete,conflict,orders}": 1,
		"requests_total{strong,transact,ok,orders}":     1, "requests_total{strong,bulk_get,unavailable,orders}": 1,
		"requests_total{strong,list,ok,orders}": 1,
		"etag_conflicts_total{set,orders}":      1, "etag_conflicts_total{delete,orders}": 1,
		"request_duration_seconds{get,orders}": 3, "request_duration_seconds{set,orders}": 2,
		"request_duration_seconds{delete,orders}":   1,
		"request_duration_seconds{transact,orders}": 1, "request_duration_seconds{bulk_get,orders}": 1,
		"request_duration_seconds{list,orders}": 1,
		"written_bytes_total{orders}":           15 + 100, "read_bytes_total{orders}": 7 + 20 + 300,
	}
	if diff := cmp.Diff(want, samples(t, reg)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestMetrics_OutcomeForEveryCode(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := metrics(t, reg)
	r := &recorder{}
	s := m.Instrument(r, "s", state.Eventual)
	codes := []fault.Code{
		fault.NotFound, fault.Conflict, fault.LockLost, fault.DeliverySettled, fault.ActorMoved, fault.Invalid,
		fault.TooLarge, fault.Denied, fault.NotLeader, fault.Unavailable, fault.ReadOnly, fault.FormatBlocked,
		fault.Overloaded, fault.Indeterminate, fault.Timeout, fault.Unimplemented, fault.Corrupt, fault.Internal,
	}
	for _, code := range codes {
		r.err = fault.New(code, "test", "x")
		s.Delete(t.Context(), state.DeleteRequest{}) //nolint:errcheck // the error is the point
	}
	got := samples(t, reg)
	for _, code := range codes {
		if name := "requests_total{eventual,delete," + string(code) + ",s}"; got[name] != 1 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
}

func TestMetrics_InFlight(t *testing.T) {
	reg := prometheus.NewRegistry()
	during := map[string]float64{}
	s := metrics(t, reg).Instrument(observer{&recorder{}, func() { during = samples(t, reg) }}, "s", state.Eventual)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), state.GetRequest{}); err != nil {
		t.Fatal(err)
	}
	const name = "requests_in_flight{get,s}"
	if after := samples(t, reg); during[name] != 1 || after[name] != 0 {
		t.Errorf("%s was %v during the call and %v after it", name, during[name], after[name])
	}
}

func TestMetrics_FollowConventions(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := metrics(t, reg).Instrument(newAble(), "s", state.Eventual)
	s.Get(t.Context(), state.GetRequest{}) //nolint:errcheck // never fails
	families, err := reg.Gather()
	if err != nil || len(families) != 6 {
		t.Fatalf("gathered %d families, %v; want 6", len(families), err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "quorate_state_") {
			t.Errorf("%s is not named after the product", f.GetName())
		}
	}
}

func TestNewMetrics_OncePerRegistry(t *testing.T) {
	reg := prometheus.NewRegistry()
	metrics(t, reg)
	if _, err := state.NewMetrics(reg); !fault.Is(err, fault.Internal) {
		t.Errorf("a second NewMetrics: %v", err)
	}
}

func TestMetrics_CountingDoesNotAllocate(t *testing.T) {
	s := metrics(t, nil).Instrument(silent{}, "s", state.Strong)
	ctx := t.Context()
	items := []state.Write{{Key: "k"}}
	if n := testing.AllocsPerRun(100, func() {
		s.Get(ctx, state.GetRequest{Key: "k"})                          //nolint:errcheck // never fails
		s.Set(ctx, state.SetRequest{Items: items})                      //nolint:errcheck // never fails
		s.Delete(ctx, state.DeleteRequest{Consistency: state.Eventual}) //nolint:errcheck // never fails
	}); n != 0 {
		t.Errorf("three counted calls allocate %v times", n)
	}
}

// observer is a store that calls look during a Get, so that a test can read the metrics.
type observer struct {
	*recorder
	look func()
}

func (o observer) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	o.look()
	return o.recorder.Get(ctx, r)
}

// silent is a store that does nothing.
type silent struct{}

func (silent) Get(context.Context, state.GetRequest) (state.Item, error) { return state.Item{}, nil }

func (silent) Set(context.Context, state.SetRequest) (state.Written, error) {
	return state.Written{}, nil
}

func (silent) Delete(context.Context, state.DeleteRequest) (state.Written, error) {
	return state.Written{}, nil
}

func (silent) Close() error { return nil }

func BenchmarkInstrumentedGet(b *testing.B) {
	ctx := b.Context()
	for name, s := range map[string]state.Store{"bare": silent{},
		"counted": metrics(b, nil).Instrument(silent{}, "s", state.Eventual)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Get(ctx, state.GetRequest{Key: "k"}) //nolint:errcheck // never fails
			}
		})
	}
}
