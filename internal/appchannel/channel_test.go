package appchannel_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func channel(t *testing.T, addr net.Addr, change func(*appchannel.Options)) (*appchannel.Channel, chan bool) {
	t.Helper()
	told := make(chan bool, 100)
	o := appchannel.Options{Port: addr.(*net.TCPAddr).Port, Logger: slog.New(slog.DiscardHandler),
		OnHealth: func(healthy bool) { told <- healthy }}
	change(&o)
	c, err := appchannel.New(o)
	if err != nil {
		t.Fatal(err)
	}
	c.Open()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, told
}

func call(c *appchannel.Channel, path string) (*http.Response, error) {
	r := (&http.Request{Method: "GET", URL: &url.URL{Path: path}, Header: http.Header{},
		Body: http.NoBody}).WithContext(context.Background())
	return c.RoundTrip(r)
}

func expectHealth(t *testing.T, told chan bool, want bool) {
	t.Helper()
	select {
	case got := <-told:
		if got != want {
			t.Fatalf("healthy: %v", got)
		}
	case <-time.After(time.Minute):
		t.Fatalf("OnHealth was not called: %v", want)
	}
}

// lines receives the lines of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// expect waits for the next line.
func (l lines) expect(t *testing.T, want string) {
	t.Helper()
	if line := <-l; !strings.Contains(line, want) {
		t.Errorf("logged %q, want %q", line, want)
	}
}

func TestRoundTrip_EveryProtocolWithToken(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto+" "+r.Header.Get("dapr-api-token")+" "+r.URL.Path)
	})
	for protocol, want := range map[appchannel.Protocol]string{appchannel.HTTP: "HTTP/1.1",
		appchannel.HTTPS: "HTTP/2.0", appchannel.H2C: "HTTP/2.0"} {
		s := httptest.NewUnstartedServer(h)
		s.EnableHTTP2 = true
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetHTTP1(true)
		s.Config.Protocols.SetHTTP2(true)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		if protocol == appchannel.HTTPS {
			s.StartTLS()
		} else {
			s.Start()
		}
		c, told := channel(t, s.Listener.Addr(),
			func(o *appchannel.Options) { o.Protocol, o.Token = protocol, "secret" })
		expectHealth(t, told, true)
		answer, err := call(c, "/x")
		if err != nil {
			t.Fatalf("%s: %v", protocol, err)
		}
		b, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if string(b) != want+" secret /x" || c.InFlight() != 0 {
			t.Errorf("%s: %q, %d in flight", protocol, b, c.InFlight())
		}
		_ = c.Close()
		s.Close()
	}
}

func TestHealth_FollowsProbesAndThreshold(t *testing.T) {
	var sick atomic.Bool
	var probes atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/live" {
			return
		}
		probes.Add(1)
		if r.Header.Get("dapr-api-token") != "" {
			t.Error("a probe carries the token")
		}
		if sick.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	c, told := channel(t, s.Listener.Addr(), func(o *appchannel.Options) {
		o.Token = "secret"
		o.Health = appchannel.Health{Enabled: true, Path: "/live", Interval: 10 * time.Millisecond,
			Timeout: 5 * time.Second, Threshold: 3}
	})
	expectHealth(t, told, true)
	sick.Store(true)
	from := probes.Load()
	expectHealth(t, told, false)
	if n := probes.Load() - from; n < 2 {
		t.Errorf("unhealthy after %d failures", n)
	}
	if _, err := call(c, "/x"); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(err.Error(), "app is not in a healthy state") {
		t.Errorf("%v", err)
	}
	sick.Store(false)
	expectHealth(t, told, true)
	answer, err := call(c, "/x")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
}

func TestHealth_ApplicationStartsLateOrAgain(t *testing.T) {
	addr := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: testutil.SparePort(t)}
	log := make(lines, 100)
	c, told := channel(t, addr, func(o *appchannel.Options) { o.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	log.expect(t, "waiting for the application")
	if _, err := call(c, "/"); !fault.Is(err, fault.Unavailable) || c.Seen() {
		t.Errorf("%v", err)
	}
	for range 2 {
		l, err := net.Listen("tcp", addr.String())
		testutil.Must(t, err)
		s := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Second}
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Serve(l) }()
		expectHealth(t, told, true)
		log.expect(t, "the application accepts calls")
		_ = s.Close()
		<-done
		if _, err := call(c, "/"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("%v", err)
		}
		expectHealth(t, told, false)
		log.expect(t, "the application does not accept calls")
	}
	if !c.Seen() {
		t.Error("it was there")
	}
}

func TestNew_RefusesWrongOptions(t *testing.T) {
	for _, o := range []appchannel.Options{{}, {Port: 70000}, {Port: 80, Protocol: "ftp"}} {
		if _, err := appchannel.New(o); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
