package state_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// pinged is a store whose server the test can stop.
type pinged struct {
	recorder
	every time.Duration

	mu    sync.Mutex
	down  error
	calls error // error of Get, if down is nil
	pings int
}

func (p *pinged) Ping(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pings++
	return p.down
}

func (p *pinged) PingInterval() time.Duration { return p.every }

// Get implements state.Store.
func (p *pinged) Get(context.Context, state.GetRequest) (state.Item, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down == nil {
		return state.Item{}, p.calls
	}
	return state.Item{}, p.down
}

func (p *pinged) set(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = err
}

func (p *pinged) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pings
}

func refused() error {
	return &fault.Error{Code: fault.Unavailable, Op: "test.Get", Msg: "no server at 127.0.0.1:1", Hint: "start it"}
}

// monitored starts a monitor of a store with the ping interval every. It returns the store below, the wrapper, the
// monitor, the log, and a function that reads the gauge.
func monitored(t *testing.T, every time.Duration) (*pinged, state.Store, *state.Monitor, *bytes.Buffer,
	func() float64) {
	t.Helper()
	reg := prometheus.NewRegistry()
	metrics, err := state.NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	below := &pinged{every: every}
	store, m := state.Monitored(below, state.MonitorOptions{Name: "orders", Metrics: metrics,
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	t.Cleanup(m.Close)
	up := func() float64 {
		expected := "# HELP quorate_state_store_up 1 if the server of an outside state store answers, 0 otherwise.\n" +
			"# TYPE quorate_state_store_up gauge\nquorate_state_store_up{store=\"orders\"} 1\n"
		if testutil.GatherAndCompare(reg, strings.NewReader(expected), "quorate_state_store_up") == nil {
			return 1
		}
		return 0
	}
	return below, store, m, &log, up
}

func TestMonitor_SaysSinceWhenAServerIsUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below, store, m, log, up := monitored(t, 5*time.Second)
		<-time.After(6 * time.Second)
		synctest.Wait()
		if why, down := m.Down(); down || below.count() != 1 || up() != 1 {
			t.Errorf("a server that answers: down %v (%s) after %d pings, metric %v", down, why, below.count(), up())
		}
		below.set(refused())
		begun := time.Now().Add(4 * time.Second)
		<-time.After(4*time.Second + 1)
		synctest.Wait()
		why, down := m.Down()
		want := "its server has been unreachable since " + begun.UTC().Format(time.RFC3339) +
			": no server at 127.0.0.1:1 (start it)"
		if !down || why != want || up() != 0 {
			t.Errorf("Down() = %q, %v, metric %v; want %q", why, down, up(), want)
		}
		<-time.After(time.Minute)
		if later, _ := m.Down(); later != want {
			t.Errorf("a minute later it is down since another time: %q", later)
		}
		_, err := store.Get(t.Context(), state.GetRequest{Key: "k"})
		if !fault.Is(err, fault.Unavailable) || !state.IsOutside(err) || fault.Text(err) != want {
			t.Errorf("Get = %v", err)
		}
		below.set(nil)
		<-time.After(2 * time.Second)
		synctest.Wait()
		if why, down := m.Down(); down || up() != 1 {
			t.Errorf("after the server came back: %q", why)
		}
		if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "level=WARN") ||
			!strings.Contains(log.String(), "answers again") {
			t.Errorf("want one warning and one line that it answers again, got\n%s", log)
		}
		m.Close()
	})
}

func TestMonitor_FailedCallPingsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below, store, m, _, _ := monitored(t, 0)
		<-time.After(time.Hour)
		if n := below.count(); n != 0 {
			t.Errorf("%d pings of a server where they cost money", n)
		}
		below.set(refused())
		if _, err := store.Get(t.Context(), state.GetRequest{Key: "k"}); !state.IsOutside(err) {
			t.Errorf("Get = %v", err)
		}
		synctest.Wait()
		if _, down := m.Down(); !down || below.count() != 2 {
			t.Errorf("down is %v after a failed call and %d pings", down, below.count())
		}
		m.Close()
	})
}

func TestMonitor_OnlyFailuresOfTheServerCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below, store, m, _, _ := monitored(t, time.Second)
		for code, want := range map[fault.Code]bool{fault.Overloaded: false, fault.Denied: true, fault.Timeout: true} {
			below.set(fault.New(code, "test", "why"))
			<-time.After(3 * time.Second)
			if _, down := m.Down(); down != want {
				t.Errorf("a ping ends with %s: down is %v", code, down)
			}
			_, err := store.Get(t.Context(), state.GetRequest{Key: "k"})
			if state.IsOutside(err) || !fault.Is(err, code) {
				t.Errorf("an error with the code %s became %v", code, err)
			}
			below.set(nil)
			<-time.After(3 * time.Second)
			if _, down := m.Down(); down {
				t.Errorf("down after the server answered again (%s)", code)
			}
		}
		m.Close()
	})
}

func TestMonitored_LeavesOtherStoresAlone(t *testing.T) {
	r := &recorder{}
	store, m := state.Monitored(r, state.MonitorOptions{})
	if _, down := m.Down(); store != state.Store(r) || m != nil || down {
		t.Error("a store without a server is wrapped")
	}
	m.Close()
}

// TestMonitor_FailedCallsDoNotCauseAPingEach makes calls fail for ten seconds while pings succeed, as with a server
// that refuses one operation. The monitor must not ping after each call, because a ping may cost money.
func TestMonitor_FailedCallsDoNotCauseAPingEach(t *testing.T) {
	for _, every := range []time.Duration{0, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			below, store, _, _, _ := monitored(t, every)
			below.calls = &fault.Error{Code: fault.Denied, Op: "test.Get", Msg: "no rights"}
			for range 1000 {
				_, _ = store.Get(t.Context(), state.GetRequest{Key: "k"})
				<-time.After(10 * time.Millisecond)
			}
			synctest.Wait()
			if n := below.count(); n < 5 || n > 12 {
				t.Errorf("interval %s: %d pings in ten seconds", every, n)
			}
		})
	}
}
