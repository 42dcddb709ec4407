package remoteinvoke_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
)

func TestForwarded_HasAdvertisedAddress(t *testing.T) {
	for address, want := range map[string][3]string{
		"192.0.2.7":   {"192.0.2.7", "192.0.2.7", "for=192.0.2.7;host=192.0.2.7"},
		"2001:db8::7": {"2001:db8::7", "[2001:db8::7]", `for="[2001:db8::7]";host="[2001:db8::7]"`},
		"":            {},
	} {
		got := make(chan http.Header, 1)
		app := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
		defer app.Close()
		w := newWorld(t)
		w.self = netip.Addr{}
		if address != "" {
			w.self = netip.MustParseAddr(address)
		}
		w.start("b", "web", app.Listener.Addr().String(), nil)
		answer, err := client(t).Get(w.start("a", "shop", "", nil).url("/v1.0/invoke/web/method/x"))
		if err != nil {
			t.Fatal(err)
		}
		body(t, answer)
		h := <-got
		if have := [3]string{h.Get("X-Forwarded-For"), h.Get("X-Forwarded-Host"), h.Get("Forwarded")}; have != want {
			t.Errorf("%q: %q", address, have)
		}
	}
}

// recorder is an application that records the network addresses of its callers.
type recorder chan string

// RoundTrip implements invoke.Channel.
func (c recorder) RoundTrip(r *http.Request) (*http.Response, error) {
	c <- r.RemoteAddr
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

func TestRemoteAddress_ReachesTheMiddlewareOfTheCallee(t *testing.T) {
	a, b := pair(t, describe)
	got := make(recorder, 1)
	b.callee.Serve(map[api.App]invoke.Channel{b.app: got}, nil)
	for _, from := range []*node{a, b} {
		answer, err := client(t).Get(from.url("/v1.0/invoke/web/method/x"))
		if err != nil {
			t.Fatal(err)
		}
		body(t, answer)
		if at, err := netip.ParseAddrPort(<-got); err != nil || !at.Addr().IsLoopback() {
			t.Errorf("from node %s: %s, %v", from.name, at, err)
		}
	}
}

func TestForwarded_FollowsWhatClientSent(t *testing.T) {
	got := make(chan http.Header, 1)
	a, _ := pair(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header })
	body(t, exchange(t, a, "GET /v1.0/invoke/web/method/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"+
		"X-Forwarded-For: 198.51.100.1\r\nX-Forwarded-Host: shop.example\r\nX-Forwarded-Host: edge.example\r\n"+
		"Forwarded: for=198.51.100.1\r\n\r\n"))
	h := <-got
	for name, want := range map[string][]string{
		"X-Forwarded-For":  {"198.51.100.1, 127.0.0.1"},
		"X-Forwarded-Host": {"shop.example", "edge.example, 127.0.0.1"},
		"Forwarded":        {"for=198.51.100.1, for=127.0.0.1;host=127.0.0.1"},
	} {
		if !slices.Equal(h[name], want) {
			t.Errorf("%s: %q, want %q", name, h[name], want)
		}
	}
}
