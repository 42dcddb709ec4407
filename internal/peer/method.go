package peer

import (
	"context"
	"crypto/tls"
	"fmt"

	"github.com/quorate/quorate/internal/fault"
)

// Peer identifies a caller, as verified when its connection was made.
type Peer struct {
	Identity
	Caller Caller               // the identity of the other end, and whether it is proven
	TLS    *tls.ConnectionState // nil without TLS
}

// Caller is the identity at the other end of a connection, as used by access control.
type Caller struct {
	Server string   // the server id in the preamble
	Node   string   // node id; empty unless Proven
	Apps   []string // SPIFFE ids of the applications of the node; empty unless Proven
	Proven bool     // a certificate proves the identity; without TLS any identity can be claimed
}

// Request is a call as its handler sees it.
type Request struct {
	From    Peer
	Payload []byte // belongs to the handler
}

// Handler answers a call. It should return soon after ctx has ended. ctx ends in these cases:
//
//   - The deadline of the caller passes.
//   - The caller cancels the call.
//   - The connection is lost.
//   - The port closes.
//
// The handler must not change the answer after it has returned. The caller receives an error of the handler with its
// code, hint and key. If the handler returns the error of a context, the caller receives fault.Indeterminate, because
// the handler may have done part of its work.
type Handler func(ctx context.Context, r Request) ([]byte, error)

// Method is a method that other nodes may call. The limits apply to each connection separately. At most Concurrency
// requests of MaxRequest bytes are in memory, and as many answers of MaxAnswer bytes. In addition, each call that waits
// for a handler has at most 64 KiB of its request in memory.
type Method struct {
	Name        string // 1 to 64 bytes
	Handle      Handler
	Concurrency int  // concurrent handlers for each connection; further calls wait. Default 256
	MaxRequest  int  // bytes; default Limits.Message
	MaxAnswer   int  // bytes; default Limits.Message
	Join        bool // also callable by the client of Port.Join, even from and on servers without a cluster
}

const defaultConcurrency = 256

// method is a validated Method.
type method struct {
	Method
	meter *meter
}

func newMethod(m Method, limit int, all *metrics) (*method, error) {
	def(&m.Concurrency, defaultConcurrency)
	def(&m.MaxRequest, limit)
	def(&m.MaxAnswer, limit)
	switch {
	case m.Name == "" || len(m.Name) > maxMethod:
		return nil, fault.New(fault.Invalid, "peer.Handle",
			fmt.Sprintf("a method name has 1 to %d bytes: %q", maxMethod, m.Name))
	case m.Handle == nil:
		return nil, fault.New(fault.Invalid, "peer.Handle", "method "+m.Name+" needs a handler")
	case m.Concurrency < 1 || m.MaxRequest < 1 || m.MaxRequest > limit || m.MaxAnswer < 1 || m.MaxAnswer > limit:
		return nil, fault.New(fault.Invalid, "peer.Handle",
			fmt.Sprintf("the bounds of method %s must be from 1 to %d", m.Name, limit))
	}
	return &method{Method: m, meter: all.meter(calledSide, m.Name)}, nil
}
