package invoke_test

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/internal/testutil"
)

// partner is a server outside of the cluster. It reports the request line of each request as received.
type partner struct {
	address string
	lines   chan string
}

func newPartner(t *testing.T) *partner {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	p := &partner{address: l.Addr().String(), lines: make(chan string, 1)}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.answer(c)
		}
	}()
	return p
}

// answer reads one request and closes the connection.
func (p *partner) answer(c net.Conn) {
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	if err != nil {
		return
	}
	for head := line; strings.TrimSpace(head) != ""; {
		if head, err = in.ReadString('\n'); err != nil {
			return
		}
	}
	p.lines <- strings.TrimSpace(line)
	_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
}

// outward returns an invocation service that may call the endpoint partner below base. If open is true, it may also
// call addresses that are not declared.
func outward(t *testing.T, base string, transport *http.Transport, open bool) *invoke.Service {
	t.Helper()
	return outwardWith(t, &invoke.Externals{}, base, transport, open)
}

func outwardWith(t *testing.T, externals *invoke.Externals, base string, transport *http.Transport,
	open bool) *invoke.Service {
	t.Helper()
	return outwardUnder(t, resiliency.NewPolicies(), externals, base, transport, open)
}

func outwardUnder(t *testing.T, policies *resiliency.Policies, externals *invoke.Externals, base string,
	transport *http.Transport, open bool) *invoke.Service {
	t.Helper()
	metrics, err := invoke.NewMetrics(prometheus.NewRegistry(), nil)
	testutil.Must(t, err)
	u, err := url.Parse(base)
	testutil.Must(t, err)
	externals.Set([]*invoke.External{{Name: "partner", Base: u, Transport: transport}}, transport, open)
	sessions := api.NewSessions(nil)
	return invoke.New(api.App{ID: "shop"}, invoke.Parts{
		Routes: &invoke.Routes{}, Here: invoke.NewCallee(sessions, metrics, apitest.Untraced{}), Sessions: sessions,
		Policies: policies, Tracer: apitest.Untraced{}, Metrics: metrics, Externals: externals,
		Logger: slog.New(slog.DiscardHandler),
	})
}

func get(t *testing.T, s *invoke.Service, target, path string) error {
	t.Helper()
	answer, err := s.Do(t.Context(), &invoke.Call{Target: target, Verb: http.MethodGet, Path: path, Query: "q=%2f|",
		Header: http.Header{}, Body: http.NoBody})
	if err == nil {
		_ = answer.Body.Close()
	}
	return err
}

func TestExternals_KeepEveryByteOfPaths(t *testing.T) {
	p := newPartner(t)
	direct := invoke.NewTransport(nil)
	proxied := invoke.NewTransport(nil)
	proxied.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: p.address})
	for name, c := range map[string]struct {
		transport  *http.Transport
		host, line string // line: the text before the path in the request line
	}{
		"direct":      {direct, p.address, ""},
		"HTTP proxy":  {proxied, "partner.example", "http://partner.example"},
		"proxy, port": {proxied, "partner.example:81", "http://partner.example:81"},
	} {
		for _, base := range []string{"", "/", "/base", "/base/", "/b%61se;v=%2B1"} {
			s := outward(t, "http://"+c.host+base, c.transport, false)
			for _, path := range []string{"/a%2Fb", "/a%2fb", "/a%3Bb;c", "/a%2Bb+c", "/a|b{c}\"^`<\xc3\xbc>", "/a//b",
				"//a%2Fb", "/a%252Fb", "/", "/%41"} {
				for target, below := range map[string]string{"partner": "", "http://" + c.host + base: "",
					"http://" + c.host + strings.TrimSuffix(base, "/") + "/x%2Fy%7Cz;1+%2B": "/x%2Fy%7Cz;1+%2B"} {
					if err := get(t, s, target, path); err != nil {
						t.Errorf("%s, %s%s: %v", name, target, path, err)
						continue
					}
					want := "GET " + c.line + strings.TrimSuffix(base, "/") + below + path + "?q=%2f| HTTP/1.1"
					if got := <-p.lines; got != want {
						t.Errorf("%s, %s%s is requested as %q, want %q", name, target, path, got, want)
					}
				}
			}
		}
	}
}

func TestExternals_UndeclaredAddressNeedsToken(t *testing.T) {
	p := newPartner(t)
	for _, open := range []bool{false, true} {
		for _, proven := range []bool{false, true} {
			s := outward(t, "http://partner.example", invoke.NewTransport(nil), open)
			answer, err := s.Do(t.Context(), &invoke.Call{Target: "http://" + p.address, Verb: http.MethodGet,
				Path: "/m", Header: http.Header{}, Body: http.NoBody, Proven: proven})
			if err == nil {
				_ = answer.Body.Close()
				if line := <-p.lines; line != "GET /m HTTP/1.1" {
					t.Errorf("requested as %q", line)
				}
			}
			if open || proven {
				testutil.Must(t, err)
			} else if e := api.AsError(err); e == nil || e.Kind != api.Denied {
				t.Errorf("without a token: %v", err)
			}
		}
	}
}

func TestExternals_AddressDoesNotEscapeItsBase(t *testing.T) {
	p := newPartner(t)
	for _, open := range []bool{false, true} {
		s := outward(t, "http://"+p.address+"/base", invoke.NewTransport(nil), open)
		for _, path := range []string{"/base/..", "/base/../admin", "/base/..;/admin", "/base/..;x=1/admin",
			"/base/.;/admin", "/base/%2e%2e/admin", "/base/..%5cadmin", `/base/..\admin`, `/base/x\..\..\admin`,
			"/base/x%5C..%5C..%5Cadmin", "/base/x%2F..%2F..%2Fadmin", "/base/..%2Fadmin", "/base/..%3b/admin",
			"/base//admin", "/base/x%0ay", "/base/x%", "//"} {
			err := get(t, s, "http://"+p.address+path, "/m")
			if api.AsError(err) == nil || api.AsError(err).Kind != api.Malformed {
				t.Errorf("undeclared addresses allowed: %t, address %s: %v", open, path, err)
				select {
				case line := <-p.lines:
					t.Errorf("it is requested as %q", line)
				default:
				}
			}
		}
	}
}

func TestExternals_DeadAddressDoesNotOpenBreakerOfAnother(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	testutil.Must(t, dead.Close())
	p, policies := newPartner(t), resiliency.NewPolicies()
	policies.Set(nil, &resiliency.Policy{Retry: &resiliency.Retry{}, Breaker: &resiliency.Breakers{
		Settings: resiliency.BreakerSettings{Name: "careful", Trip: func(c resiliency.BreakerCounts) bool {
			return c.TotalFailures > 0
		}}}})
	s := outwardUnder(t, policies, &invoke.Externals{}, "http://partner.example", invoke.NewTransport(nil), true)
	for _, want := range []string{"cannot be reached", "circuit breaker is open"} {
		if err := get(t, s, "http://"+dead.Addr().String(), "/m"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	testutil.Must(t, get(t, s, "http://"+p.address, "/m"))
}
