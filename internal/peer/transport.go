package peer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

const (
	poolSize      = 3        // idle connections kept for each server of a group: entries, heartbeats, votes
	timeoutScale  = 32 << 10 // raft scales the timeout of a snapshot by its size divided by these bytes
	requestAtOnce = 1        // no pipelining, see hashicorp/raft#612
)

// Transport is the raft.Transport of one group over the peer port. The Raft address of a server is its id. Transport
// wraps raft.NetworkTransport, with these differences:
//
//   - Close closes every connection and waits for the goroutines that serve them.
//   - If the other side has closed an idle connection, the request is repeated on another connection. All repeated
//     requests are idempotent.
//   - Time limits apply to the time without progress, as described at Timing.Raft and Timing.SnapshotStall.
//   - AppendEntries to a server that is down waits until the server is reachable, at most Timing.Hold. If AppendEntries
//     failed at once, raft would pause for up to 10 s before the next attempt, even if the server is back earlier.
//     Heartbeats do not wait.
//
// All methods are safe for concurrent use.
type Transport struct {
	group uint32
	port  *Port
	layer *layer
	net   *raft.NetworkTransport

	ctx       context.Context // ends with Interrupt; ends the waits for servers that are down
	interrupt context.CancelFunc
	closed    sync.Once
}

var (
	_ raft.Transport   = (*Transport)(nil)
	_ raft.WithPreVote = (*Transport)(nil)
	_ raft.WithClose   = (*Transport)(nil)
)

func newTransport(p *Port, group uint32) *Transport {
	t := &Transport{group: group, port: p, layer: newLayer(p, group)}
	t.ctx, t.interrupt = context.WithCancel(t.layer.ctx)
	t.net = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: t.layer, MaxPool: poolSize, MaxRPCsInFlight: requestAtOnce, Timeout: p.opts.Timing.Raft,
		Logger: transportLog{hclog.NewNullLogger(), p.opts.Logger.With("group", group)},
	})
	t.net.TimeoutScale = timeoutScale
	return t
}

// transportLog logs every message of raft.NetworkTransport at level debug. The library logs each closed connection as
// an error, but connections are also closed when a node stops normally.
type transportLog struct {
	hclog.Logger
	to *slog.Logger
}

func (l transportLog) Debug(msg string, args ...any) { l.to.Debug("raft transport: "+msg, args...) }
func (l transportLog) Warn(msg string, args ...any)  { l.Debug(msg, args...) }
func (l transportLog) Error(msg string, args ...any) { l.Debug(msg, args...) }

// Interrupt ends all waits for servers that are down. From then on, requests to such servers usually fail at once
// instead of waiting for up to Timing.Hold. Call Interrupt before raft's Shutdown, which waits for these requests.
func (t *Transport) Interrupt() { t.interrupt() }

// Close closes the connections of the transport in both directions and waits for the goroutines that serve them. The
// caller must shut down the group's raft.Raft before it calls Close. Close is idempotent and always returns nil.
func (t *Transport) Close() error {
	t.closed.Do(func() {
		t.port.forget(t)
		t.interrupt()
		_ = t.net.Close() // this always returns nil, and closes the layer
		t.net.CloseStreams()
		t.layer.users.Wait()
	})
	return nil
}

// addressOf returns the address of a server, which is its id.
func addressOf(id raft.ServerID) raft.ServerAddress { return raft.ServerAddress(id) }

// isHeartbeat reports whether a request is a heartbeat, by the same rule as raft.NetworkTransport.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return len(r.Entries) == 0 && r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && r.LeaderCommitIndex == 0
}

// AppendEntries sends entries or a heartbeat.
func (t *Transport) AppendEntries(id raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	if !isHeartbeat(args) {
		t.port.health.wait(t.ctx, target{string(id), true}, t.port.opts.Timing.Hold)
	}
	return retry(func() error {
		*resp = raft.AppendEntriesResponse{}
		return t.net.AppendEntries(id, addressOf(id), args, resp)
	})
}

// RequestVote asks for a vote.
func (t *Transport) RequestVote(id raft.ServerID, _ raft.ServerAddress, args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse) error {
	return retry(func() error {
		*resp = raft.RequestVoteResponse{}
		return t.net.RequestVote(id, addressOf(id), args, resp)
	})
}

// RequestPreVote asks whether a vote would be granted.
func (t *Transport) RequestPreVote(id raft.ServerID, _ raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse) error {
	return retry(func() error {
		*resp = raft.RequestPreVoteResponse{}
		return t.net.RequestPreVote(id, addressOf(id), args, resp)
	})
}

// TimeoutNow asks a server to start an election at once, for a leadership transfer.
func (t *Transport) TimeoutNow(id raft.ServerID, _ raft.ServerAddress, args *raft.TimeoutNowRequest,
	resp *raft.TimeoutNowResponse) error {
	return retry(func() error {
		*resp = raft.TimeoutNowResponse{}
		return t.net.TimeoutNow(id, addressOf(id), args, resp)
	})
}

// InstallSnapshot sends a snapshot over a separate connection.
func (t *Transport) InstallSnapshot(id raft.ServerID, _ raft.ServerAddress, args *raft.InstallSnapshotRequest,
	resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return t.net.InstallSnapshot(id, addressOf(id)+snapshotMark, args, resp, data)
}

// AppendEntriesPipeline returns raft.ErrPipelineReplicationNotSupported, so that raft does not use pipelines. A
// pipeline can deadlock when a follower rejects an entry.
func (t *Transport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// Consumer returns the channel of incoming requests.
func (t *Transport) Consumer() <-chan raft.RPC { return t.net.Consumer() }

// SetHeartbeatHandler sets the function that answers heartbeats.
func (t *Transport) SetHeartbeatHandler(h func(raft.RPC)) { t.net.SetHeartbeatHandler(h) }

// LocalAddr returns the id of this server.
func (t *Transport) LocalAddr() raft.ServerAddress { return t.net.LocalAddr() }

// EncodePeer encodes the address of a server, which is its id.
func (t *Transport) EncodePeer(id raft.ServerID, _ raft.ServerAddress) []byte { return []byte(id) }

// DecodePeer reverses EncodePeer.
func (t *Transport) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// retry calls the given function, and repeats the call if the other side has closed the connection. It makes several
// attempts, because all idle connections of the pool may be closed.
func retry(request func() error) error {
	var err error
	for range poolSize + 3 {
		if err = request(); !lostConnection(err) {
			break
		}
	}
	return err
}

// lostConnection reports whether err means that the other side has closed the connection. It returns false for a
// failed dial.
func lostConnection(err error) bool {
	if _, dialled := fault.As(err); dialled {
		return false
	}
	for err != nil {
		for _, closed := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed,
			syscall.ECONNRESET, syscall.EPIPE} {
			if errors.Is(err, closed) {
				return true
			}
		}
		c, ok := err.(interface{ Cause() error }) //nolint:errorlint // one step at a time
		if !ok {
			return false
		}
		err = c.Cause()
	}
	return false
}
