package faulttest

import (
	"context"
	"fmt"
	"net"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace and the OS thread that created it. The namespace exists as long as the thread.
type namespace struct {
	fd   int
	jobs chan func()
	gone chan struct{}
}

func newNamespace() (*namespace, error) {
	ns := &namespace{jobs: make(chan func()), gone: make(chan struct{})}
	made := make(chan error, 1)
	go ns.run(made)
	if err := <-made; err != nil {
		return nil, fmt.Errorf("a network namespace cannot be made: %w", err)
	}
	return ns, nil
}

func (ns *namespace) run(made chan<- error) {
	defer close(ns.gone)
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		made <- err
		return
	}
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	ns.fd = fd
	made <- err
	if err != nil {
		return
	}
	for job := range ns.jobs {
		job()
	}
	_ = unix.Close(fd)
}

// do runs f on the thread of the namespace.
func (ns *namespace) do(f func() error) error {
	done := make(chan error, 1)
	ns.jobs <- func() { done <- f() }
	return <-done
}

// enter moves the current OS thread into the namespace.
func (ns *namespace) enter() error { return unix.Setns(ns.fd, unix.CLONE_NEWNET) }

// dial connects to an address from inside the namespace, like an application on the machine of the node. Network
// faults do not affect the connection.
func (ns *namespace) dial(ctx context.Context, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	got := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: no other goroutine may use this namespace
		if err := ns.enter(); err != nil {
			got <- result{nil, err}
			return
		}
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		got <- result{c, err}
	}()
	r := <-got
	return r.conn, r.err
}

// close ends the thread. The namespace must not be used afterwards.
func (ns *namespace) close() {
	close(ns.jobs)
	<-ns.gone
}
