package discovery

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/quorate/quorate/internal/fault"
)

// Resolver looks up the addresses of host names. *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Seeds are the configured nodes through which a node joins the cluster. A seed is an IP address or a host name, with
// a port. A host name may have several addresses, which may change. Seeds are immutable and safe for concurrent use.
type Seeds struct {
	list     []seed
	resolver Resolver
}

type seed struct {
	host string
	port uint16
}

// ParseSeeds parses seeds of the form "host", "host:port", "[v6]:port" or "v6". port is the default port. r looks up
// the host names. If some seeds are invalid, ParseSeeds returns one fault.Invalid error that lists all of them.
func ParseSeeds(texts []string, port uint16, r Resolver) (*Seeds, error) {
	s := &Seeds{resolver: r}
	var bad []string
	for _, text := range texts {
		one, ok := parseSeed(strings.TrimSpace(text), port)
		if !ok {
			bad = append(bad, strconv.Quote(text))
			continue
		}
		s.list = append(s.list, one)
	}
	if len(bad) > 0 {
		return nil, &fault.Error{Code: fault.Invalid, Op: "discovery.ParseSeeds",
			Msg:  "these nodes to join cannot be read: " + strings.Join(bad, ", "),
			Hint: "give names or addresses, with a port after a colon where it is not the default"}
	}
	return s, nil
}

// SeedHost returns the host of a seed, without the port. It returns "" if text is not a valid seed.
func SeedHost(text string) string {
	s, _ := parseSeed(strings.TrimSpace(text), 0)
	return s.host
}

func parseSeed(text string, port uint16) (seed, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return seed{addr.String(), port}, true
	}
	host, number, err := net.SplitHostPort(text)
	if err != nil {
		return seed{text, port}, isHost(text)
	}
	n, err := strconv.ParseUint(number, 10, 16)
	return seed{host, uint16(n)}, err == nil && n > 0 && isHost(host)
}

// isHost reports whether text may be a DNS name or an address.
func isHost(text string) bool {
	if _, err := netip.ParseAddr(text); err == nil {
		return true
	}
	return text != "" && len(text) <= 253 && !strings.ContainsAny(text, " \t/\\:@[]%,")
}

// Resolve returns the addresses of all seeds without duplicates, in the order of the seeds. Every call looks up all
// host names again. The lookups are concurrent, so that a slow name does not delay the others. Resolve omits names that
// cannot be resolved before ctx ends. It returns fault.Unavailable if there are seeds but no addresses.
func (s *Seeds) Resolve(ctx context.Context) ([]netip.AddrPort, error) {
	addrs, errs := make([][]netip.Addr, len(s.list)), make([]error, len(s.list))
	var wg sync.WaitGroup
	for i, one := range s.list {
		wg.Go(func() { addrs[i], errs[i] = s.lookup(ctx, one.host) })
	}
	wg.Wait()
	var out []netip.AddrPort
	var failed []string
	for i, one := range s.list {
		if errs[i] != nil {
			failed = append(failed, fmt.Sprintf("%s: %v", one.host, errs[i]))
		}
		for _, a := range addrs[i] {
			if p := netip.AddrPortFrom(a.Unmap(), one.port); !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	if len(out) == 0 && len(s.list) > 0 {
		return nil, &fault.Error{Code: fault.Unavailable, Op: "discovery.Resolve",
			Msg:  "no node to join was found: " + strings.Join(failed, "; "),
			Hint: "check the names given to --join; they are looked up again on every try"}
	}
	return out, nil
}

func (s *Seeds) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	return s.resolver.LookupNetIP(ctx, "ip", host)
}

// Empty reports whether there are no seeds.
func (s *Seeds) Empty() bool { return len(s.list) == 0 }
