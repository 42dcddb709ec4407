// Package listen opens TCP listeners and Unix sockets. All packages use it, so that a port that is already in use has
// the same consequences everywhere.
//
// It owns the fallback to a free port and the error messages. It has no goroutines.
package listen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"github.com/quorate/quorate/internal/fault"
)

// attempts is the maximum number of ports that TCP tries until one is free on every host.
const attempts = 16

// Request describes where to listen.
type Request struct {
	Hosts    []string // IP addresses or names of this machine; at least one. All get the same port
	Port     int      // 0 = any free port
	Fallback bool     // use a free port if Port is taken
	Flag     string   // the setting of the port, such as "--http-port"
}

// TCP opens one listener for each host, all on the same port. If one of them cannot be opened, it opens none and
// returns a *fault.Error:
//
//	unavailable  the port is taken and Fallback is false, or no port is free on all hosts
//	denied       the process may not listen on that port
//	invalid      a host is not an address of this machine, or there are no hosts
//	internal     another error of the system
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

// flexible reports whether another port may be tried.
func (r Request) flexible() bool { return r.Fallback || r.Port == 0 }

// Port returns the port of l, or 0 if l is no TCP listener.
func Port(l net.Listener) int {
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

// The range of ports that Spare tries. Well-known services use lower ports. Operating systems use higher ports for
// outgoing connections: from 32768 on Linux, and from 49152 by RFC 6335.
const (
	firstSpare = 10240
	endSpare   = 32768
)

// Spare returns n different ports of 127.0.0.1, from 10240 to 32767, that are now free for TCP and UDP. They will
// probably stay free until a process opens them, because by default the system itself assigns only higher ports. Spare
// returns fault.Unavailable if it does not find enough ports.
func Spare(ctx context.Context, n int) ([]int, error) {
	var out []int
	for _, i := range rand.Perm(endSpare - firstSpare) {
		if len(out) == n {
			break
		}
		if port := firstSpare + i; free(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) {
			out = append(out, port)
		}
	}
	if len(out) == n {
		return out, nil
	}
	return nil, fault.New(fault.Unavailable, "listen.Spare",
		fmt.Sprintf("127.0.0.1 has less than %d free ports between %d and %d", n, firstSpare, endSpare-1))
}

// free reports whether an address is free for TCP and UDP at this moment.
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

// Unix opens a Unix socket that the owner and the group may use. It replaces a socket file that a previous process has
// left behind. It returns fault.Unavailable if a running process serves the socket, and fault.Invalid if the socket
// cannot be opened.
func Unix(ctx context.Context, path, flag string) (net.Listener, error) {
	var d net.Dialer
	if c, err := d.DialContext(ctx, "unix", path); err == nil {
		_ = c.Close()
		return nil, &fault.Error{Code: fault.Unavailable, Op: "listen.Unix",
			Msg:  "a process serves the socket of " + flag + ": " + path,
			Hint: "end that process, or give another directory"}
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path) // if this fails, Listen fails below
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err == nil {
		err = os.Chmod(path, 0o660) // #nosec G302 -- applications with the group of the socket use it
	}
	if err == nil {
		return l, nil
	}
	if l != nil {
		_ = l.Close()
	}
	return nil, &fault.Error{Code: fault.Invalid, Op: "listen.Unix", Msg: "the socket of " + flag +
		" cannot be opened: " + path, Err: err, Hint: "give an existing directory that this user can write, with a " +
		"path of less than 100 bytes"}
}

// IsLoopback reports whether host is certainly a loopback address, which only this machine can reach. For a name other
// than localhost it returns false, because the addresses of the name may change.
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

// closeAll closes listeners. It ignores errors, because the caller returns an earlier error.
func closeAll(ls []net.Listener) {
	for _, l := range ls {
		_ = l.Close()
	}
}

// explain returns an error of the system as a *fault.Error with a hint how to fix it.
func explain(err error, host string, port int, flag string) error {
	e := &fault.Error{Code: fault.Internal, Op: "listen.TCP",
		Msg: fmt.Sprintf("cannot listen on %s for %s", net.JoinHostPort(host, strconv.Itoa(port)), flag), Err: err}
	var dns *net.DNSError
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		addr, _ := netip.ParseAddr(host) // a name may be any address
		e.Code, e.Hint = fault.Unavailable, InUse("tcp", netip.AddrPortFrom(addr, uint16(port)), flag)
		e.Err = syscall.EADDRINUSE
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		e.Code, e.Hint = fault.Denied, fmt.Sprintf("choose a port above 1023 with %s, or grant the capability "+
			"net_bind_service", flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.As(err, &dns):
		e.Code, e.Hint = fault.Invalid, "give an address of this machine"
	}
	return e
}
