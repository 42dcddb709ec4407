package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"

	"github.com/quorate/quorate/internal/fault"
)

// Peer is who calls, as checked when its connection was made.
type Peer struct {
	Identity
	Caller Caller               // what of it is proven
	TLS    *tls.ConnectionState // nil without TLS
}

// Caller is who stands at the other end of a connection, as access is decided by.
type Caller struct {
	Server string   // the server id of its preamble
	Node   string   // node id; empty unless proven
	Apps   []string // SPIFFE ids of the applications it serves; none unless proven
	Proven bool     // by its certificate. Without TLS anybody may say anything
}

// Request is a call as its handler sees it.
type Request struct {
	From    Peer
	Payload []byte // belongs to the handler
}

// Handler answers a call. Its ctx ends at the caller's deadline, when the caller gives up
// or is lost, and when the port closes; it must return soon then. The answer must not be
// changed afterwards. An error travels with its code, hint and key; a bare context error,
// which does not tell whether anything was done, becomes indeterminate.
type Handler func(ctx context.Context, r Request) ([]byte, error)

// StreamHandler serves a stream: rw is its body in both directions, r.Payload what came
// with the opening. The stream ends when the handler returns. One goroutine may read while
// another writes. Besides that as Handler.
type StreamHandler func(ctx context.Context, r Request, rw io.ReadWriter) error

// Method is something other nodes may call. The memory one connection can make this node
// hold for it is Concurrency times MaxRequest and MaxAnswer.
type Method struct {
	Name         string // 1 to 64 bytes
	Handle       Handler
	HandleStream StreamHandler // instead of Handle
	Concurrency  int           // handlers at a time for each connection; more wait. Default 256
	MaxRequest   int           // bytes; default Limits.Message. For a stream, of the payload of its opening
	MaxAnswer    int           // bytes; default Limits.Message
	Join         bool          // also callable by Port.Join, from and on servers without a cluster
}

const defaultConcurrency = 256

// method is a Method that was checked.
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
		return nil, fault.New(fault.Invalid, "peer.Handle", fmt.Sprintf("a method name has 1 to %d bytes: %q", maxMethod, m.Name))
	case (m.Handle == nil) == (m.HandleStream == nil):
		return nil, fault.New(fault.Invalid, "peer.Handle", "method "+m.Name+" needs one handler, for calls or for streams")
	case m.Concurrency < 1 || m.MaxRequest < 1 || m.MaxRequest > limit || m.MaxAnswer < 1 || m.MaxAnswer > limit:
		return nil, fault.New(fault.Invalid, "peer.Handle", fmt.Sprintf("the bounds of method %s must be from 1 to %d", m.Name, limit))
	}
	return &method{Method: m, meter: all.meter(calledSide, m.Name)}, nil
}
