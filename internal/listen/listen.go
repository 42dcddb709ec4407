// Package listen opens TCP listeners by one rule for ports that are taken.
//
// It owns the fallback to a free port and the words of a refusal. It must never know
// what is served. It has no goroutines.
package listen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/quorate/quorate/internal/fault"
)

// attempts bounds the search for one port that is free on every host.
const attempts = 16

// Request says where to listen.
type Request struct {
	Hosts    []string // IP addresses or names of this machine; at least one. All get the same port
	Port     int      // 0 = any free port
	Fallback bool     // a free port will do where Port is taken
	Flag     string   // the setting a person would change, as "--http-port"
}

// TCP opens one listener per host, all on one port, or none. Errors are *fault.Error:
//
//	unavailable  the port is taken and Fallback is false
//	denied       the process may not listen on that port
//	invalid      a host is not an address of this machine
func TCP(ctx context.Context, r Request) ([]net.Listener, error) {
	if len(r.Hosts) == 0 {
		return nil, fault.New(fault.Invalid, "listen.TCP", "no address to listen on for "+r.Flag)
	}
	ls, err := open(ctx, r)
	for i := 1; i < attempts && err != nil && r.flexible() && errors.Is(err, syscall.EADDRINUSE); i++ {
		r.Port = 0
		ls, err = open(ctx, r)
	}
	return ls, err
}

// flexible reports whether the port may differ from one attempt to the next.
func (r Request) flexible() bool { return r.Fallback || r.Port == 0 }

// Port is the port l listens on; 0 if l is no TCP listener.
func Port(l net.Listener) int {
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

// The ports that Spare looks at: those of well-known services lie below, and those that
// systems give to outgoing connections above (32768 on Linux, 49152 by RFC 6335).
const (
	firstSpare = 10240
	endSpare   = 32768
)

// Spare finds n different ports of 127.0.0.1 that are free for TCP and UDP at this moment.
// Unlike a port that was asked for with 0 and closed again, the system gives them to nobody
// who does not ask for them by number, so that they may be told to a process yet to start.
// The error is unavailable if there are not so many.
func Spare(ctx context.Context, n int) ([]int, error) {
	var out []int
	for _, i := range rand.Perm(endSpare - firstSpare) {
		if len(out) == n {
			return out, nil
		}
		if port := firstSpare + i; free(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) {
			out = append(out, port)
		}
	}
	return nil, fault.New(fault.Unavailable, "listen.Spare", fmt.Sprintf("127.0.0.1 has less than %d free ports between %d and %d", n, firstSpare, endSpare-1))
}

// free reports whether an address can be had at this moment, for TCP and for UDP.
func free(ctx context.Context, address string) bool {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer func() { _ = l.Close() }()
	c, err := lc.ListenPacket(ctx, "udp", address)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// IsLoopback reports whether host can be reached from this machine alone. A name other
// than localhost does not count: what it resolves to may change.
func IsLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func open(ctx context.Context, r Request) ([]net.Listener, error) {
	var lc net.ListenConfig
	ls := make([]net.Listener, 0, len(r.Hosts))
	port := r.Port
	for _, host := range r.Hosts {
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			closeAll(ls)
			return nil, explain(err, host, port, r.Flag)
		}
		ls, port = append(ls, l), Port(l)
	}
	return ls, nil
}

// closeAll gives up listeners nobody has used yet; an error of theirs would only hide the cause.
func closeAll(ls []net.Listener) {
	for _, l := range ls {
		_ = l.Close()
	}
}

// explain turns what the system said into what to do about it.
func explain(err error, host string, port int, flag string) error {
	e := &fault.Error{Code: fault.Internal, Op: "listen.TCP", Msg: fmt.Sprintf("cannot listen on %s for %s", net.JoinHostPort(host, strconv.Itoa(port)), flag), Err: err}
	var dns *net.DNSError
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		e.Code, e.Hint = fault.Unavailable, fmt.Sprintf("another process has the port: stop it, or choose a port with %s; 0 picks a free one", flag)
		e.Err = syscall.EADDRINUSE
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		e.Code, e.Hint = fault.Denied, fmt.Sprintf("choose a port above 1023 with %s, or grant the capability net_bind_service", flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.As(err, &dns):
		e.Code, e.Hint = fault.Invalid, "give an address of this machine"
	}
	return e
}
