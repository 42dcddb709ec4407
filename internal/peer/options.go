package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/pending"
)

// maxID bounds the length of a server or cluster id, in bytes.
const maxID = 255

// Identity is what a node reports about itself when a connection is made.
type Identity struct {
	Server  string // persistent server id, 1 to 255 bytes
	Cluster string // cluster id, at most 255 bytes; empty = this node belongs to no cluster yet
	Epoch   uint64 // raised by every rescue of the cluster; AnyEpoch for a node without replicas
}

// AnyEpoch is the epoch of a node without replicas. It matches every epoch, so that the node can call all servers of
// its cluster and be called by them. Such a node cannot run a Raft group.
const AnyEpoch = ^uint64(0)

// Options configure a Port. Self, Resolve, Logger and Registerer are required.
type Options struct {
	// Self returns the identity of this node. It is called at every preamble, from any goroutine. After the cluster
	// or the epoch has changed, call Port.Refresh.
	Self func() Identity
	// Resolve returns the "host:port" of a server. It is called before every dial, from any goroutine.
	Resolve func(ctx context.Context, server string) (string, error)
	// Dial opens a connection to an address from Resolve; nil = TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// TLS returns the TLS configurations for the next connection: server for an accepted connection, client for a
	// dialled one. It is called for every connection, so certificates may change; call Port.Renew afterwards. If the
	// client configuration has neither ServerName nor InsecureSkipVerify, the server id is used as the ServerName. A
	// server configuration should request a certificate and leave its verification to VerifyPeer, because the caller
	// then gets the text of the error. nil = plain TCP.
	TLS func() (server, client *tls.Config)
	// VerifyPeer returns the identity that the certificate of the other side proves. It returns an error if the
	// certificate is not trusted or not valid for server. Each side calls it after the TLS handshake, and Port.Recheck
	// calls it again. If the error comes from Distrust, the port logs and counts its Reason. The same applies to errors
	// of checks in the TLS configurations. Required with TLS.
	VerifyPeer func(state tls.ConnectionState, server string) (Caller, error)

	Timing Timing
	Limits Limits

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Timing holds the time limits of a Port. Zero fields take defaults.
type Timing struct {
	FirstByte time.Duration // time limit for the first byte of an accepted connection; default 2 s
	Handshake time.Duration // time limit for TLS and preamble of an accepted connection; default 5 s
	Dial      time.Duration // time limit for dialling, TLS and preamble; default 2 s
	Backoff   time.Duration // longest pause between dials for calls to a server that is down; default 1 s

	Raft           time.Duration // longest time that a Raft request may make no progress; default 2.5 s
	SnapshotStall  time.Duration // longest time that a snapshot stream may make no progress; default 30 s
	SnapshotAnswer time.Duration // minimum time for a receiver to restore a snapshot and answer; default 60 s
	Hold           time.Duration // maximum wait of entries for a server that is down; default Raft

	Ping  time.Duration // silence after which a call connection is probed; default 1 s
	Dead  time.Duration // silence after which a call connection is closed; default 4 s, at least 2 pings
	Idle  time.Duration // time without calls after which a call connection is closed; default 60 s
	Drain time.Duration // maximum time that Close waits for answers to be sent; default 1 s
}

// Limits hold the bounds of a Port. Zero fields take defaults.
type Limits struct {
	// Pending is the maximum number of accepted connections that have not finished their preamble; default 512. If one
	// more arrives, the port closes the oldest.
	Pending int
	// PendingPerSource is the maximum number of such connections from one source address; default 128, at most
	// Pending. If one more arrives, the port closes the oldest one of that address.
	PendingPerSource int

	Connections int // connections with a finished preamble, both directions; default 4096
	// InFlight is the maximum number of unanswered calls by Client.Call to one server. Calls by Client.Wait have a
	// separate limit of the same size. Further calls wait. Default 1024, at most 1024.
	InFlight int
	Message  int // bytes of one request or answer; default 70 MiB
}

// maxInFlight is the maximum number of unanswered calls that a callee accepts on one connection. Calls by Client.Call
// and by Client.Wait count together. The Limits of the callee do not change this maximum.
const maxInFlight = 2048

func (o Options) withDefaults() Options {
	t, l := &o.Timing, &o.Limits
	def(&t.FirstByte, pending.DefaultFirstByte)
	def(&t.Handshake, 5*time.Second)
	def(&t.Dial, 2*time.Second)
	def(&t.Backoff, time.Second)
	def(&t.Raft, 2500*time.Millisecond)
	def(&t.SnapshotStall, 30*time.Second)
	def(&t.SnapshotAnswer, time.Minute)
	def(&t.Hold, t.Raft)
	def(&t.Ping, time.Second)
	def(&t.Dead, 4*time.Second)
	def(&t.Idle, time.Minute)
	def(&t.Drain, time.Second)
	def(&l.Pending, pending.DefaultTotal)
	def(&l.PendingPerSource, min(pending.DefaultPerSource, l.Pending))
	def(&l.Connections, 4096)
	def(&l.InFlight, 1024)
	def(&l.Message, 70<<20)
	if o.Dial == nil {
		o.Dial = dialTCP
	}
	return o
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (o Options) validate() error {
	bad := func(format string, a ...any) error {
		return &fault.Error{Code: fault.Invalid, Op: "peer.New", Msg: fmt.Sprintf(format, a...)}
	}
	t, l := o.Timing, o.Limits
	switch {
	case o.Self == nil || o.Resolve == nil || o.Logger == nil || o.Registerer == nil:
		return bad("Self, Resolve, Logger and Registerer are required")
	case o.TLS != nil && o.VerifyPeer == nil:
		return bad("TLS without VerifyPeer would take any certificate for any server")
	case t.Dead < 2*t.Ping:
		return bad("a silent connection is given up after %s, which must be at least two pings of %s", t.Dead, t.Ping)
	case l.InFlight > maxInFlight/2:
		return bad("%d calls in flight are more than a callee takes, %d", l.InFlight, maxInFlight/2)
	case l.Pending < 1 || l.PendingPerSource < 1 || l.Connections < 1 || l.InFlight < 1 || l.Message < 1:
		return bad("limits must be positive: %+v", l)
	}
	return nil
}
