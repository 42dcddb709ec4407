package faulttest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// appPort is the port of the application beside each node, in the network of the node.
const appPort = 8080

// listen listens at an address inside the namespace.
func (ns *namespace) listen(address string) (net.Listener, error) {
	type result struct {
		l   net.Listener
		err error
	}
	got := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: no other goroutine may use this namespace
		if err := unix.Setns(ns.fd, unix.CLONE_NEWNET); err != nil {
			got <- result{nil, err}
			return
		}
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
		got <- result{l, err}
	}()
	r := <-got
	return r.l, r.err
}

// serveApplication serves h as the application of the node, inside the network of the node. The HTTP server runs in
// this process, so the application continues while the node is paused or dead.
func (n *Node) serveApplication(h http.Handler) error {
	l, err := n.ns.listen(fmt.Sprintf("127.0.0.1:%d", appPort))
	if err != nil {
		return err
	}
	n.app = &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	n.flags = append(n.flags, "--app-port", fmt.Sprint(appPort))
	go func() { _ = n.app.Serve(l) }() // until close
	return nil
}
