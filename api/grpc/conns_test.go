package grpc_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/quorate/quorate/api/apitest"
)

// patience bounds each wait of a test.
const patience = time.Minute

// wire is a connection on which a test reads and writes HTTP/2 frames.
type wire struct {
	net.Conn
	*http2.Framer
	t testing.TB
}

func knock(t testing.TB, to *grpc.ClientConn) *wire {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(to.Target(), "passthrough:///"))
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	must(t, c.SetDeadline(time.Now().Add(patience)))
	w := &wire{Conn: c, Framer: http2.NewFramer(c, c), t: t}
	w.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, _ = io.WriteString(c, http2.ClientPreface) // the server may have closed the connection already
	_ = w.WriteSettings()
	return w
}

// begin sends the header of a call, but no message.
func (w *wire) begin(stream uint32, method string, more ...hpack.HeaderField) {
	w.t.Helper()
	var b strings.Builder
	enc := hpack.NewEncoder(&b)
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method},
		{Name: ":authority", Value: "localhost"},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, more...) {
		must(w.t, enc.WriteField(f))
	}
	must(w.t, w.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: []byte(b.String()),
		EndHeaders: true}))
}

// await reads frames until is returns true for one of them. The test fails if the connection ends before that.
func (w *wire) await(what string, is func(http2.Frame) bool) http2.Frame {
	w.t.Helper()
	for {
		f, err := w.ReadFrame()
		if err != nil {
			w.t.Fatalf("%s does not come: %v", what, err)
		}
		if is(f) {
			return f
		}
	}
}

// settings waits for the settings of the server.
func (w *wire) settings() *http2.SettingsFrame {
	w.t.Helper()
	return w.await("settings", func(f http2.Frame) bool {
		s, ok := f.(*http2.SettingsFrame)
		return ok && !s.IsAck()
	}).(*http2.SettingsFrame)
}

// ends waits until the other side has closed the connection. It returns false if this takes longer than patience.
func (w *wire) ends() bool {
	for {
		if _, err := w.ReadFrame(); err != nil {
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// status waits for the end of a call and returns its status code, or "none".
func (w *wire) status(stream uint32) string {
	w.t.Helper()
	f := w.await("the end of the call", func(f http2.Frame) bool {
		h, ok := f.(*http2.MetaHeadersFrame)
		return ok && h.StreamID == stream && h.StreamEnded()
	}).(*http2.MetaHeadersFrame)
	for _, field := range f.Fields {
		if field.Name == "grpc-status" {
			return field.Value
		}
	}
	return "none"
}

// metric returns the value of the time series with the given label values. The values are in the order of the label
// names, without the label app. It returns 0 if there is no such series.
func (f *fixture) metric(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	families, err := f.Metrics.Gather()
	must(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			var has []string
			for _, l := range m.GetLabel() {
				if l.GetName() != "app" {
					has = append(has, l.GetValue())
				}
			}
			if slices.Equal(has, labels) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// calls returns the number of calls of a method of Dapr's service that ended with a code.
func (f *fixture) calls(t testing.TB, method, code string) float64 {
	t.Helper()
	return f.metric(t, "quorate_grpc_requests_total", code, "Dapr/"+method)
}

// send sends the first bytes of a message that announces size bytes. It respects the flow control of the server.
func (w *wire) send(stream uint32, size, bytes int) {
	w.t.Helper()
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), make([]byte, bytes)...)
	for window := 1<<16 - 1; len(body) > 0; {
		n := min(len(body), window, 16<<10)
		must(w.t, w.WriteData(stream, false, body[:n]))
		body, window = body[n:], window-n
		for window == 0 {
			window += int(w.await("a larger window", func(f http2.Frame) bool {
				u, ok := f.(*http2.WindowUpdateFrame)
				return ok && u.StreamID == stream
			}).(*http2.WindowUpdateFrame).Increment)
		}
	}
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come true", what)
		}
	}
}

const getState = "/dapr.proto.runtime.v1.Dapr/GetState"

func TestConns_OverLimitClosesLongestIdle(t *testing.T) {
	f := newFixture(t)
	f.config.MaxConnections = 2
	kept := f.serve(t)
	c := runtimev1.NewDaprClient(kept)
	get := func(c runtimev1.DaprClient) error {
		_, err := c.GetState(t.Context(), &runtimev1.GetStateRequest{StoreName: "orders", Key: "a"})
		return err
	}
	silent := knock(t, kept)
	silent.settings() // the server has accepted this connection before the next one
	must(t, get(c))
	third := knock(t, kept)
	third.settings()
	if !silent.ends() {
		t.Error("the connection that sent nothing stays open")
	}
	must(t, get(c))
	if cut := f.metric(t, "quorate_grpc_connections_cut_total"); cut != 1 {
		t.Errorf("%v were cut", cut)
	}
	eventually(t, "two connections are open", func() bool { return f.metric(t, "quorate_grpc_connections") == 2 })
	_ = third.Conn.Close()
	eventually(t, "one connection is open", func() bool { return f.metric(t, "quorate_grpc_connections") == 1 })
	if !strings.Contains(f.Log.String(), "too many connections") {
		t.Errorf("the log does not report the closed connection: %s", f.Log)
	}
}

func TestConns_WithCallAreNotClosedForNewOnes(t *testing.T) {
	f := newFixture(t)
	f.config.MaxConnections, f.config.RequestTimeout = 1, patience
	busy := f.serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { // the key makes the store wait for the end of the call
		_, err := runtimev1.NewDaprClient(busy).GetState(ctx,
			&runtimev1.GetStateRequest{StoreName: "faulty", Key: "deadline"})
		done <- err
	}()
	eventually(t, "the call is under way", func() bool { return f.metric(t, "quorate_grpc_requests_in_flight") == 1 })
	if newcomer := knock(t, busy); !newcomer.ends() {
		t.Error("a connection above the limit is accepted")
	}
	cancel()
	wantCode(t, <-done, codes.Canceled)
	must(t, func() error {
		_, err := runtimev1.NewDaprClient(busy).GetState(t.Context(),
			&runtimev1.GetStateRequest{StoreName: "orders", Key: "a"})
		return err
	}())
}

// Probes need no token, so a health watch must not protect its connection from the connection limit.
func TestConns_HealthWatchCountsAsIdle(t *testing.T) {
	f := newFixture(t)
	f.config.MaxConnections, f.config.Tokens = 1, apitest.Tokens("secret")
	conn := f.serve(t)
	watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	must(t, err)
	_, err = watch.Recv()
	must(t, err)
	other := dial(t, strings.TrimPrefix(conn.Target(), "passthrough:///"))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "dapr-api-token", "secret")
	_, err = runtimev1.NewDaprClient(other).GetState(ctx, &runtimev1.GetStateRequest{StoreName: "orders", Key: "a"})
	must(t, err)
	_, err = watch.Recv()
	wantCode(t, err, codes.Unavailable)
}

func TestServer_AnnouncesStreamAndHeaderLimits(t *testing.T) {
	f := newFixture(t)
	f.config.RequestTimeout = patience // the calls wait for their messages
	conn := f.serve(t)
	settings := knock(t, conn).settings()
	if v, _ := settings.Value(http2.SettingMaxConcurrentStreams); v != 1024 {
		t.Errorf("%d calls on one connection", v)
	}
	if v, _ := settings.Value(http2.SettingMaxHeaderListSize); v != 16<<10 {
		t.Errorf("%d bytes of header", v)
	}
	w := knock(t, conn)
	for i := range uint32(1025) {
		w.begin(2*i+1, getState)
	}
	w.await("the refusal of one call too many", func(f http2.Frame) bool {
		r, ok := f.(*http2.RSTStreamFrame)
		return ok && r.StreamID == 2*1024+1 && r.ErrCode == http2.ErrCodeRefusedStream
	})
	long := knock(t, conn) // a client that ignores the announced limits
	long.begin(1, getState, hpack.HeaderField{Name: "x", Value: strings.Repeat("v", 15<<10)},
		hpack.HeaderField{Name: "y", Value: strings.Repeat("v", 900)})
	long.await("the refusal of a header too long", func(f http2.Frame) bool {
		_, reset := f.(*http2.RSTStreamFrame)
		h, headers := f.(*http2.MetaHeadersFrame)
		return reset || headers && h.StreamEnded()
	})
	must(t, func() error {
		_, err := runtimev1.NewDaprClient(conn).GetState(t.Context(),
			&runtimev1.GetStateRequest{StoreName: "orders", Key: "a"})
		return err
	}())
	if got := f.calls(t, "GetState", "OK"); got != 1 {
		t.Errorf("%v calls were served", got)
	}
}

func TestServer_ClosesConnThatPingsTooOften(t *testing.T) {
	w := knock(t, newFixture(t).serve(t))
	w.settings()
	go func() {
		for w.WritePing(false, [8]byte{1}) == nil { // until the connection is closed
		}
	}()
	f := w.await("the GOAWAY frame", func(f http2.Frame) bool {
		g, ok := f.(*http2.GoAwayFrame)
		return ok && g.ErrCode == http2.ErrCodeEnhanceYourCalm
	}).(*http2.GoAwayFrame)
	if string(f.DebugData()) != "too_many_pings" {
		t.Errorf("%q", f.DebugData())
	}
}

func TestCall_EndsIfMessageDoesNotArrive(t *testing.T) {
	f := newFixture(t)
	f.config.RequestTimeout = 20 * time.Millisecond
	w := knock(t, f.serve(t))
	w.begin(1, getState)
	if got := w.status(1); got != "4" {
		t.Errorf("the call ends with the code %s", got)
	}
	if got := f.calls(t, "GetState", "DeadlineExceeded"); got != 1 {
		t.Errorf("%v calls that came too late were counted", got)
	}
}

func TestToken_MissingIsRefusedBeforeMessage(t *testing.T) {
	f := newFixture(t)
	f.config.Tokens, f.config.RequestTimeout = apitest.Tokens("the-right-one"), patience
	w := knock(t, f.serve(t))
	w.begin(1, getState, hpack.HeaderField{Name: "dapr-api-token", Value: "wrong-guess"})
	w.begin(3, "/made.up/"+strings.Repeat("x", 1000), hpack.HeaderField{Name: "dapr-app-id", Value: "shop"},
		hpack.HeaderField{Name: "dapr-api-token", Value: "wrong-guess"})
	for _, stream := range []uint32{1, 3} {
		if got := w.status(stream); got != "16" {
			t.Errorf("call %d ends with the code %s", stream, got)
		}
	}
	if got := f.calls(t, "GetState", "Unauthenticated"); got != 1 {
		t.Errorf("%v were counted", got)
	}
	log := f.Log.String()
	if strings.Count(log, "audit: a request was turned away") != 1 ||
		!strings.Contains(log, "remote=127.0.0.1 method=Dapr/GetState") {
		t.Errorf("one line about the host is wanted: %s", log)
	}
	if strings.Contains(log, "wrong-guess") || strings.Contains(log, "the-right-one") {
		t.Errorf("the log shows a token: %s", log)
	}
}

// A call without a token is refused at once, even if its timeout is longer than the request timeout.
func TestToken_MissingIsRefusedWithDetailsDespiteLongTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{25 * time.Second, time.Hour} {
		f := newFixture(t)
		f.config.Tokens, f.config.RequestTimeout = apitest.Tokens("the-right-one"), 30*time.Second
		c := f.client(t)
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		_, err := c.GetState(ctx, &runtimev1.GetStateRequest{StoreName: "orders", Key: "a"})
		cancel()
		if st := wantCode(t, err, codes.Unauthenticated); !strings.Contains(st.Message(), "dapr-api-token") {
			t.Errorf("%s: %v", timeout, st)
		}
		if log := f.Log.String(); strings.Count(log, "audit:") != 1 {
			t.Errorf("%s: %s", timeout, log)
		}
		ctx = metadata.AppendToOutgoingContext(t.Context(), "dapr-api-token", "the-right-one")
		if _, err := c.GetState(ctx, &runtimev1.GetStateRequest{StoreName: "orders", Key: "a"}); err != nil {
			t.Errorf("%s: %v", timeout, err)
		}
	}
}
