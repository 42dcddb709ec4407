package api_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func call(app, route string, code int) func() api.LoggedCall {
	return func() api.LoggedCall {
		return api.LoggedCall{App: app, Method: "GET /v1.0/state/s/secret-key", Endpoint: route, Code: code,
			Begun: time.Now(), Level: "linearizable", Parent: parent}
	}
}

func TestCallLog_DescribesNoCallWithoutReaders(t *testing.T) {
	c := api.NewCallLog(slog.New(slog.DiscardHandler))
	w, err := c.Watch(api.CallFilter{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Watched() {
		t.Error("a watched log says that it is not watched")
	}
	w.Close()
	w.Close()
	if c.Watched() {
		t.Error("the log is still watched")
	}
	describe := func() (out api.LoggedCall) {
		t.Error("a call was described although nothing reads it")
		return out
	}
	c.HTTP(describe)
	c.GRPC(describe)
	if n := testing.AllocsPerRun(100, func() { c.HTTP(describe) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCallWatch_GetsSelectedCallsWithoutKeys(t *testing.T) {
	log := &bytes.Buffer{}
	c := api.NewCallLog(slog.New(slog.NewTextHandler(log, nil)))
	trace := api.TraceID(parent)
	for _, one := range []struct {
		name   string
		filter api.CallFilter
		want   string // routes
	}{
		{"all", api.CallFilter{}, "GET /a,POST /b,/svc/C"},
		{"application", api.CallFilter{App: "shop"}, "GET /a,/svc/C"},
		{"route", api.CallFilter{Route: "post"}, "POST /b"},
		{"failed", api.CallFilter{Failed: true}, "POST /b,/svc/C"},
		{"trace", api.CallFilter{Trace: trace}, "GET /a,POST /b,/svc/C"},
		{"other trace", api.CallFilter{Trace: "1" + trace[1:]}, ""},
		{"slow", api.CallFilter{Least: time.Hour}, ""},
	} {
		t.Run(one.name, func(t *testing.T) {
			w, err := c.Watch(one.filter, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			c.HTTP(call("shop", "GET /a", 200))
			c.HTTP(call("stock", "POST /b", 503))
			c.GRPC(call("shop", "/svc/C", 5))
			c.HTTP(func() api.LoggedCall { return api.LoggedCall{Health: true, Endpoint: "GET /health"} })
			calls, lost := w.Take()
			var routes []string
			for i := range calls {
				routes = append(routes, calls[i].Route)
				if calls[i].Trace != trace || calls[i].Level != "linearizable" {
					t.Errorf("got %+v", calls[i])
				}
			}
			if got := strings.Join(routes, ","); got != one.want || lost > 0 {
				t.Errorf("got %s, %d lost; want %s", got, lost, one.want)
			}
		})
	}
	if log.Len() > 0 {
		t.Errorf("a watch turned the log on: %s", log)
	}
	c.Set(api.CallLogRule{Enabled: true})
	c.HTTP(call("shop", "GET /a", 200))
	if !strings.Contains(log.String(), `msg="HTTP API Called" method="GET /v1.0/state/s/secret-key" code=200`) {
		t.Errorf("got %s", log)
	}
}

func TestCallWatch_SlowReaderGetsLastCallsAndTheirLoss(t *testing.T) {
	c, ready := api.NewCallLog(slog.New(slog.DiscardHandler)), make(chan struct{}, 1)
	w, err := c.Watch(api.CallFilter{}, ready)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	const more = 7
	for i := range api.MaxLiveCalls + more {
		c.HTTP(call("shop", strconv.Itoa(i), 200))
	}
	<-ready
	calls, lost := w.Take()
	if len(calls) != api.MaxLiveCalls || lost != more {
		t.Fatalf("%d calls, %d lost", len(calls), lost)
	}
	for i := range calls {
		if want := strconv.Itoa(i + more); calls[i].Route != want {
			t.Fatalf("call %d is %s, want %s", i, calls[i].Route, want)
		}
	}
	c.HTTP(call("shop", "next", 200))
	if calls, lost = w.Take(); len(calls) != 1 || calls[0].Route != "next" || lost != 0 {
		t.Errorf("got %+v, %d lost", calls, lost)
	}
}

func TestCallLog_BoundsWatchesAndTextOfCallers(t *testing.T) {
	c := api.NewCallLog(slog.New(slog.DiscardHandler))
	w, err := c.Watch(api.CallFilter{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.GRPC(func() api.LoggedCall {
		return api.LoggedCall{Endpoint: strings.Repeat("x", 1<<16), Level: "from an application", Parent: "00-bad"}
	})
	calls, _ := w.Take()
	if one := calls[0]; len(one.Route) > 200 || one.Level != "" || one.Trace != "" {
		t.Errorf("got %d bytes, %q, %q", len(one.Route), one.Level, one.Trace)
	}
	for range 1000 {
		if _, err = c.Watch(api.CallFilter{}, nil); err != nil {
			break
		}
	}
	if !fault.Is(err, fault.Unavailable) {
		t.Fatalf("got %v", err)
	}
	w.Close()
	if _, err = c.Watch(api.CallFilter{}, nil); err != nil {
		t.Errorf("after a watch has ended: %v", err)
	}
}

func TestCallLog_FollowEndsItsWatch(t *testing.T) {
	c := api.NewCallLog(slog.New(slog.DiscardHandler))
	enough := errors.New("enough")
	var got []string
	err := c.Follow(t.Context(), api.CallFilter{App: "shop"}, func(calls []api.LiveCall, lost uint64) error {
		if len(calls) == 0 { // calls are recorded from now on
			c.HTTP(call("stock", "GET /other", 200))
			c.HTTP(call("shop", "GET /a", 200))
			return nil
		}
		got = append(got, calls[0].Route)
		return enough
	})
	if !errors.Is(err, enough) || strings.Join(got, ",") != "GET /a" || c.Watched() {
		t.Errorf("%v, %q, watched %v", err, got, c.Watched())
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = c.Follow(ctx, api.CallFilter{}, func([]api.LiveCall, uint64) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || c.Watched() {
		t.Errorf("%v, watched %v", err, c.Watched())
	}
}
