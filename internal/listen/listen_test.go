package listen_test

import (
	"net"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/listen"
)

const (
	loopback = "127.0.0.1"
	second   = "127.0.0.2"
)

// needSecond skips the test if only the first loopback address is configured.
func needSecond(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", second+":0")
	if err != nil {
		t.Skipf("no second loopback address: %v", err)
	}
	_ = l.Close()
}

// open listens on r and closes the listeners at the end of the test.
func open(t *testing.T, r listen.Request) []net.Listener {
	t.Helper()
	ls, err := listen.TCP(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range ls {
		t.Cleanup(func() { _ = l.Close() })
	}
	return ls
}

func TestTCP_PortZeroPicksOnePortForAllHosts(t *testing.T) {
	needSecond(t)
	ls := open(t, listen.Request{Hosts: []string{loopback, second}, Flag: "--http-port"})
	if len(ls) != 2 || listen.Port(ls[0]) == 0 || listen.Port(ls[0]) != listen.Port(ls[1]) {
		t.Errorf("listening on %v", ls)
	}
}

func TestTCP_TakenPortErrorNamesFlag(t *testing.T) {
	taken := listen.Port(open(t, listen.Request{Hosts: []string{loopback}})[0])
	_, err := listen.TCP(t.Context(), listen.Request{Hosts: []string{loopback}, Port: taken, Flag: "--http-port"})
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "--http-port") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("error = %v", err)
	}
}

func TestTCP_TakenPortFallsBack(t *testing.T) {
	taken := listen.Port(open(t, listen.Request{Hosts: []string{loopback}})[0])
	l := open(t, listen.Request{Hosts: []string{loopback}, Port: taken, Fallback: true, Flag: "--metrics-port"})[0]
	if p := listen.Port(l); p == 0 || p == taken {
		t.Errorf("port %d, the taken one is %d", p, taken)
	}
}

func TestTCP_PortTakenOnSecondHostReleasesFirst(t *testing.T) {
	needSecond(t)
	taken := listen.Port(open(t, listen.Request{Hosts: []string{second}})[0])
	if _, err := listen.TCP(t.Context(),
		listen.Request{Hosts: []string{loopback, second}, Port: taken}); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("error = %v", err)
	}
	open(t, listen.Request{Hosts: []string{loopback}, Port: taken})
}

func TestTCP_ForeignAddressIsInvalid(t *testing.T) {
	for _, hosts := range [][]string{{"192.0.2.1"}, nil} {
		if _, err := listen.TCP(t.Context(), listen.Request{Hosts: hosts}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v: error = %v", hosts, err)
		}
	}
}

func TestLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		loopback: true, "127.8.9.1": true, "::1": true, "localhost": true, "::ffff:127.0.0.1": true,
		"0.0.0.0": false, "::": false, "10.0.0.1": false, "example.com": false, "": false,
	} {
		if listen.IsLoopback(host) != want {
			t.Errorf("IsLoopback(%q) = %v", host, !want)
		}
	}
}

func TestSpare_PortsDifferAndAreNotAssigned(t *testing.T) {
	ports, err := listen.Spare(t.Context(), 50)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range ports {
		if seen[p] || p < 10240 || p >= 32768 {
			t.Errorf("%d of %v", p, ports)
		}
		seen[p] = true
		l, err := listen.TCP(t.Context(), listen.Request{Hosts: []string{"127.0.0.1"}, Port: p})
		if err != nil {
			t.Errorf("%d cannot be had: %v", p, err)
			continue
		}
		_ = l[0].Close()
	}
	if _, err := listen.Spare(t.Context(), 1<<16); !fault.Is(err, fault.Unavailable) {
		t.Errorf("65536 ports of 22528: %v", err)
	}
}
