package discovery_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
)

// names is a DNS resolver in memory.
type names map[string][]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	found, ok := n[host]
	if !ok {
		return nil, errors.New("no such host")
	}
	out := make([]netip.Addr, len(found))
	for i, a := range found {
		out[i] = netip.MustParseAddr(a)
	}
	return out, nil
}

func resolve(t *testing.T, dns names, seeds ...string) []string {
	t.Helper()
	s, err := discovery.ParseSeeds(seeds, 7946, dns)
	if err != nil {
		t.Fatal(err)
	}
	found, err := s.Resolve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range found {
		out = append(out, a.String())
	}
	return out
}

func TestSeeds_ResolveToAllAddressesOnce(t *testing.T) {
	dns := names{"nodes": {"127.0.0.2", "127.0.0.3", "::1"}, "n2": {"127.0.0.2"}}
	for want, seeds := range map[string][]string{
		"[127.0.0.1:7946]": {"127.0.0.1"},
		"[127.0.0.1:1234]": {" 127.0.0.1:1234 "},
		"[[::1]:7946]":     {"::1"},
		"[[::1]:99]":       {"[::1]:99"},
		"[127.0.0.2:7946 127.0.0.3:7946 [::1]:7946]": {"nodes", "n2"},
		"[127.0.0.2:5 127.0.0.2:7946]":               {"n2:5", "n2"},
		"[127.0.0.2:7946]":                           {"gone", "n2"},
		"[127.0.0.9:7946]":                           {"::ffff:127.0.0.9"},
	} {
		got := resolve(t, dns, seeds...)
		if text := fmt.Sprint(got); text != want {
			t.Errorf("%q: %s, want %s", seeds, text, want)
		}
	}
}

func TestSeeds_LooksNamesUpOnEveryCall(t *testing.T) {
	dns := names{"nodes": {"127.0.0.2"}}
	s, err := discovery.ParseSeeds([]string{"nodes"}, 7946, dns)
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"127.0.0.2", "127.0.0.3"} {
		dns["nodes"] = []string{addr}
		got, err := s.Resolve(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{addr + ":7946"}, []string{got[0].String()}); diff != "" {
			t.Error(diff)
		}
	}
}

// slowNames is a DNS resolver that never answers for the name slow.
type slowNames struct{ names }

func (n slowNames) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if host == "slow" {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return n.names.LookupNetIP(ctx, network, host)
}

func TestSeeds_SlowNameDoesNotHideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := discovery.ParseSeeds([]string{"slow", "n2"}, 7946, slowNames{names{"n2": {"127.0.0.2"}}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		got, err := s.Resolve(ctx)
		if err != nil || len(got) != 1 || got[0].String() != "127.0.0.2:7946" {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

func TestSeeds_ErrorNamesUnresolvedSeeds(t *testing.T) {
	s, err := discovery.ParseSeeds([]string{"gone", "lost:1"}, 7946, names{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Resolve(t.Context())
	if !fault.Is(err, fault.Unavailable) || s.Empty() {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"gone", "lost", "--join"} {
		if !strings.Contains(fault.Text(err), want) {
			t.Errorf("%q does not name %s", fault.Text(err), want)
		}
	}
}

func TestParseSeeds_NamesAllInvalidSeeds(t *testing.T) {
	_, err := discovery.ParseSeeds([]string{"good", "", "a b", "x:0", "y:70000", "http://z", "[::1", "z:"}, 7946,
		names{})
	if !fault.Is(err, fault.Invalid) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{`""`, `"a b"`, `"x:0"`, `"y:70000"`, `"http://z"`, `"[::1"`, `"z:"`} {
		if !strings.Contains(fault.Text(err), want) {
			t.Errorf("%s is not named in %s", want, fault.Text(err))
		}
	}
	if strings.Contains(fault.Text(err), "good") {
		t.Error("a good seed is named")
	}
}

func FuzzParseSeeds(f *testing.F) {
	for _, s := range []string{"a", "a:1", "[::1]:2", "::1", ":", "%", "a%b:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := discovery.ParseSeeds([]string{text}, 1, names{})
		if (err == nil) == (s == nil) {
			t.Fatalf("seeds %v and error %v", s, err)
		}
	})
}
