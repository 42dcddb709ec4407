package pluggable_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	components "github.com/dapr/dapr/pkg/proto/components/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/bindings/bindingstest"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/pluggable"
	"github.com/quorate/quorate/component/pluggable/pluggabletest"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/secretstores/secretstorestest"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// values returns the checked metadata of a component.
func values(t testing.TB, properties ...component.Property) component.Values {
	t.Helper()
	v, _, err := component.Metadata(properties).Check(component.Pos{}, "c",
		append(loader.StateFields(), pluggable.Fields()...))
	testutil.Must(t, err)
	return v
}

func options(t testing.TB, folder, typ string) pluggable.Options {
	t.Helper()
	return pluggable.Options{Folder: folder, Name: "mine", Type: typ, MaxMessage: 4 << 20,
		Metadata: values(t, component.Property{Name: "Url", Value: "a"}), Logger: slog.New(slog.DiscardHandler)}
}

// soon returns a context with a timeout, for calls that must not hang.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	t.Cleanup(cancel)
	return ctx
}

// clock is a clock that tests set forward.
type clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

func memory(t testing.TB, o inmemory.Options) *inmemory.Store {
	t.Helper()
	s := inmemory.Open(o)
	t.Cleanup(func() { testutil.Must(t, s.Close()) })
	return s
}

// TestState_Conformance runs the suite against processes with different features.
func TestState_Conformance(t *testing.T) {
	all := []string{"ETAG", "TRANSACTIONAL", "TTL", "QUERY_API", "something else"}
	for name, server := range map[string]*pluggabletest.State{
		"everything":       {Offers: all},
		"no transactions":  {Offers: []string{"ETAG", "TTL"}},
		"no bulk calls":    {Offers: all, NoBulk: true},
		"small operations": {Offers: []string{"ETAG", "TRANSACTIONAL"}, Most: 60},
	} {
		t.Run(name, func(t *testing.T) {
			c := &clock{}
			server.Store = memory(t, inmemory.Options{Now: c.now})
			folder := pluggabletest.Folder(t)
			pluggabletest.Start(t, folder, "redis-like", server.Register)
			statetest.Run(t, func(t *testing.T) state.Store {
				s, err := pluggable.OpenStateAt(soon(t), options(t, folder, "state.redis-like"), c.now)
				testutil.Must(t, err)
				return s
			}, statetest.Options{Clock: &statetest.Clock{Now: c.now, Advance: c.advance}, UnknownETags: true,
				Level: state.Stale, Rounds: 1, LargeValue: 3 << 20,
				MaxOperations: int(server.Most)})
		})
	}
}

// TestState_ConformanceOfProcess runs the suite against a process that the user has started. The test cannot set the
// clock of this process, so it omits the tests of the time to live.
func TestState_ConformanceOfProcess(t *testing.T) {
	path := os.Getenv("QUORATE_TEST_PLUGGABLE")
	if path == "" {
		t.Skip("QUORATE_TEST_PLUGGABLE is not set to the path of the socket of a state store")
	}
	folder, file := filepath.Split(path)
	o := options(t, filepath.Clean(folder), "state."+strings.TrimSuffix(file, filepath.Ext(file)))
	o.Metadata = values(t)
	statetest.Run(t, func(t *testing.T) state.Store {
		s, err := pluggable.OpenState(soon(t), o)
		testutil.Must(t, err)
		return untimed(s)
	}, statetest.Options{UnknownETags: true, Level: state.Stale})
}

// timeless is a store that does not announce the feature TTL.
type timeless struct {
	state.Store
	state.BulkGetter
}

// Features implements state.Featurer.
func (t timeless) Features() []state.Feature {
	return slices.DeleteFunc(state.FeaturesOf(t.Store), func(f state.Feature) bool { return f == state.FeatureTTL })
}

// untimed returns s without the feature TTL.
func untimed(s state.Store) state.Store {
	a := state.AbilitiesOf(s)
	out := timeless{s, a.BulkGetter}
	if a.Transactor == nil {
		return out
	}
	return struct {
		timeless
		state.Transactor
	}{out, a.Transactor}
}

func TestState_AbilitiesAreThoseOfProcess(t *testing.T) {
	server := &pluggabletest.State{Store: memory(t, inmemory.Options{}), Offers: []string{"etag", "Transactional",
		"QUERY_API", "TTL", "TTL"}}
	folder := pluggabletest.Folder(t)
	p := pluggabletest.Start(t, folder, "Redis-Like", server.Register)
	open := func() state.Store {
		s, err := pluggable.OpenState(soon(t), options(t, folder, "state.redis-like"))
		testutil.Must(t, err)
		t.Cleanup(func() { testutil.Must(t, s.Close()) })
		return s
	}
	want := []state.Feature{state.FeatureETag, state.FeatureTransactional, state.FeatureTTL}
	if got := state.FeaturesOf(open()); !slices.Equal(got, want) {
		t.Errorf("features are %v, want %v", got, want)
	}
	count, properties := p.Instances.Inits()
	if count != 1 || properties["Url"] != "a" || !slices.Equal(p.Instances.Names(), []string{"mine"}) {
		t.Errorf("Init: %d times, of %v, with %v", count, p.Instances.Names(), properties)
	}
	server.Offers = nil
	s := open()
	if got := state.FeaturesOf(s); len(got) > 0 || state.AbilitiesOf(s).Transactor != nil {
		t.Errorf("features are %v, and the store has transactions", got)
	}
}

func TestSecrets_Conformance(t *testing.T) {
	for name, server := range map[string]*pluggabletest.Secrets{
		"one key": {Secrets: map[string]map[string]string{"a": {"a": "1"}, "b/c": {"b/c": "2 "}}},
		"several keys": {Secrets: map[string]map[string]string{"a": {"x": "1", "y": ""}, "b": {"z": "\x00"}},
			Offers: []string{"MULTIPLE_KEY_VALUES_PER_SECRET"}},
	} {
		t.Run(name, func(t *testing.T) {
			folder := pluggabletest.Folder(t)
			pluggabletest.Start(t, folder, "safe", server.Register)
			secretstorestest.Run(t, func(t *testing.T) secretstores.Store {
				s, err := pluggable.OpenSecrets(soon(t), options(t, folder, "secretstores.safe"))
				testutil.Must(t, err)
				return s
			}, secretstorestest.Options{Secrets: server.Secrets, Absent: "absent"})
		})
	}
}

func openBinding(t *testing.T, folder string, d bindings.Direction) bindings.Binding {
	t.Helper()
	b, err := pluggable.OpenBinding(soon(t), options(t, folder, "bindings.queue"), d)
	testutil.Must(t, err)
	return b
}

func TestOutput_Conformance(t *testing.T) {
	bindingstest.RunOutput(t, bindingstest.Output{
		Open: func(t *testing.T) bindings.Binding {
			folder := pluggabletest.Folder(t)
			pluggabletest.Start(t, folder, "queue", (&pluggabletest.Output{Operations: []string{"create",
				"Peek"}}).Register)
			return openBinding(t, folder, bindings.Direction{})
		},
		Request: bindings.Request{Operation: "create", Data: []byte(`{"a":1}`), Metadata: map[string]string{"k": "v"}},
		Hang: func(t *testing.T) (bindings.Binding, <-chan struct{}) {
			folder := pluggabletest.Folder(t)
			arrived := make(chan struct{}, 1)
			pluggabletest.Start(t, folder, "queue", (&pluggabletest.Output{Operations: []string{"create"},
				Before: func(ctx context.Context, _ *components.InvokeRequest) error {
					arrived <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				}}).Register)
			return openBinding(t, folder, bindings.Direction{}), arrived
		},
	})
}

func TestOutput_AnswerAndErrorsOfProcess(t *testing.T) {
	folder := pluggabletest.Folder(t)
	server := &pluggabletest.Output{Operations: []string{"create", "Peek"}}
	pluggabletest.Start(t, folder, "queue", server.Register)
	b := openBinding(t, folder, bindings.Direction{Output: true})
	defer func() { testutil.Must(t, b.Close(t.Context())) }()
	if b.Input != nil {
		t.Error("the process has no input")
	}
	got, err := b.Output.Invoke(soon(t), bindings.Request{Operation: "PEEK", Data: []byte("x"),
		Metadata: map[string]string{"k": "v"}})
	if err != nil || string(got.Data) != "x" || got.Metadata["k"] != "v" || got.Metadata["operation"] != "Peek" {
		t.Errorf("%+v, %v", got, err)
	}
	for code, want := range map[codes.Code]string{codes.InvalidArgument: "invalid", codes.Unauthenticated: "denied",
		codes.ResourceExhausted: "overloaded", codes.Unknown: "indeterminate", codes.DeadlineExceeded: "indeterminate",
		codes.Unavailable: "indeterminate"} {
		server.Before = func(context.Context, *components.InvokeRequest) error { return status.Error(code, "why") }
		_, err := b.Output.Invoke(soon(t), bindings.Request{Operation: "create"})
		statetest.WantFault(t, err, fault.Code(want))
		if code != codes.DeadlineExceeded && !strings.Contains(err.Error(), "why") {
			t.Errorf("%s: %v", code, err)
		}
	}
}

func TestInput_Conformance(t *testing.T) {
	bindingstest.RunInput(t, bindingstest.Input{Redelivers: true,
		Open: func(t *testing.T) (bindings.Binding, func(t *testing.T) bool) {
			folder := pluggabletest.Folder(t)
			server := &pluggabletest.Input{}
			pluggabletest.Start(t, folder, "queue", server.Register)
			return openBinding(t, folder, bindings.Direction{}), func(t *testing.T) bool {
				return (<-server.Send(t, "", "event")).GetResponseError() == nil
			}
		}})
}
