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
	timeoutScale  = 32 << 10 // a snapshot gets the time-out once for so many bytes
	requestAtOnce = 1        // no pipelining, see hashicorp/raft#612
)

// Transport is the raft.Transport of one group over the peer port. The address of a server
// is its id. It adds to raft.NetworkTransport what that lacks:
//
//   - Close cuts every connection and waits for what serves them.
//   - A pooled connection that the other side closed meanwhile does not cost a request:
//     it is repeated on the next one. All requests repeated are idempotent.
//   - Time limits are about progress, see Timing.Raft and Timing.SnapshotStall.
//   - Entries for a server that is down wait for it a little (Timing.Hold). raft doubles its
//     pause after every failure, up to ten seconds, and would let a server that is back
//     wait as long; holding a request makes failures rare, and it is sent as soon as the
//     server shows up.
//
// All methods are safe for concurrent use.
type Transport struct {
	group uint32
	port  *Port
	layer *layer
	net   *raft.NetworkTransport

	ctx       context.Context // ends by Interrupt: nothing is held any more
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

// transportLog is where raft.NetworkTransport logs: what it calls errors are connections
// that end, which happens whenever a node stops. raft itself reports failed requests.
type transportLog struct {
	hclog.Logger
	to *slog.Logger
}

func (l transportLog) Debug(msg string, args ...any) { l.to.Debug("raft transport: "+msg, args...) }
func (l transportLog) Warn(msg string, args ...any)  { l.Debug(msg, args...) }
func (l transportLog) Error(msg string, args ...any) { l.Debug(msg, args...) }

// Interrupt ends the holding of requests for servers that are down, for good. To be called
// before raft is shut down, which otherwise waits for them up to Timing.Hold.
func (t *Transport) Interrupt() { t.interrupt() }

// Close ends the transport: it cuts its connections in both directions and waits for the
// goroutines that serve them. The group's raft must have been shut down. Idempotent.
func (t *Transport) Close() error {
	t.closed.Do(func() {
		t.port.forget(t)
		t.interrupt()
		_ = t.net.Close() // always nil; it closes the layer
		t.net.CloseStreams()
		t.layer.users.Wait()
	})
	return nil
}

// addressOf is the address of a server: its id.
func addressOf(id raft.ServerID) raft.ServerAddress { return raft.ServerAddress(id) }

// isHeartbeat tells heartbeats from entries as raft.NetworkTransport does.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return len(r.Entries) == 0 && r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && r.LeaderCommitIndex == 0
}

// AppendEntries sends entries or a heartbeat.
func (t *Transport) AppendEntries(id raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if !isHeartbeat(args) {
		t.port.health.wait(t.ctx, target{string(id), true}, t.port.opts.Timing.Hold)
	}
	return retry(func() error {
		*resp = raft.AppendEntriesResponse{}
		return t.net.AppendEntries(id, addressOf(id), args, resp)
	})
}

// RequestVote asks for a vote.
func (t *Transport) RequestVote(id raft.ServerID, _ raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return retry(func() error {
		*resp = raft.RequestVoteResponse{}
		return t.net.RequestVote(id, addressOf(id), args, resp)
	})
}

// RequestPreVote asks whether a vote would be granted.
func (t *Transport) RequestPreVote(id raft.ServerID, _ raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return retry(func() error {
		*resp = raft.RequestPreVoteResponse{}
		return t.net.RequestPreVote(id, addressOf(id), args, resp)
	})
}

// TimeoutNow hands leadership over.
func (t *Transport) TimeoutNow(id raft.ServerID, _ raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return retry(func() error {
		*resp = raft.TimeoutNowResponse{}
		return t.net.TimeoutNow(id, addressOf(id), args, resp)
	})
}

// InstallSnapshot sends a snapshot over a connection of its own.
func (t *Transport) InstallSnapshot(id raft.ServerID, _ raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return t.net.InstallSnapshot(id, addressOf(id)+snapshotMark, args, resp, data)
}

// AppendEntriesPipeline is refused: a follower that rejects an entry can deadlock it.
func (t *Transport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// Consumer gives raft its requests.
func (t *Transport) Consumer() <-chan raft.RPC { return t.net.Consumer() }

// SetHeartbeatHandler sets what answers heartbeats.
func (t *Transport) SetHeartbeatHandler(h func(raft.RPC)) { t.net.SetHeartbeatHandler(h) }

// LocalAddr is this server's id.
func (t *Transport) LocalAddr() raft.ServerAddress { return t.net.LocalAddr() }

// EncodePeer encodes the address of a server: its id.
func (t *Transport) EncodePeer(id raft.ServerID, _ raft.ServerAddress) []byte { return []byte(id) }

// DecodePeer undoes EncodePeer.
func (t *Transport) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// retry repeats a request whose connection turned out to be closed. Every idle connection
// of the pool may be, and when certificates are renewed each side closes the others once.
func retry(request func() error) error {
	var err error
	for range poolSize + 3 {
		if err = request(); !lostConnection(err) {
			break
		}
	}
	return err
}

// lostConnection reports whether err says that the other side had closed the connection.
// A failed dial says it otherwise. The decoder inside raft.NetworkTransport wraps errors in
// a type that has Cause only.
func lostConnection(err error) bool {
	if _, dialled := fault.As(err); dialled {
		return false
	}
	for err != nil {
		for _, closed := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
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
