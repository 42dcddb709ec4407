package raftfsm

import (
	"context"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/backup"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/session"
)

// replica gives a node access to the groups of its cluster. Its implementations are server, for a node with data, and
// sidecar, for a node without data, which sends all calls to servers. It is safe for concurrent use.
type replica interface {
	// partitions returns the number of groups of the cluster; 0 = not known yet.
	partitions() uint32
	// waitPartitions waits until the number of groups is known.
	waitPartitions(ctx context.Context) (uint32, error)

	// leader returns the leader of a group as far as this node knows; empty = none is known.
	leader(gid uint32) raft.ServerID
	// waitChange waits until the leader of a group may have changed, or retryPause has passed.
	waitChange(ctx context.Context, gid uint32)
	// ready returns nil if reads and writes of a group can be served now, and otherwise the reason why not.
	ready(gid uint32) error
	// route implements Host.Route.
	route(gid uint32) Route

	// propose sends an encoded request to the leader of a group, without retries. values says whether the request
	// stores values; such a request is refused while the group is read-only.
	propose(ctx context.Context, gid uint32, data group.Encoded, ack group.Ack, values bool) (group.Answer, error)
	// writesAllowed returns nil if values can be stored in a group now. Otherwise it returns the reason.
	writesAllowed(gid uint32) error

	// ask sends a call to the leader of a group, without retries.
	ask(ctx context.Context, gid uint32, method string, payload []byte) ([]byte, error)

	// read executes q.
	read(ctx context.Context, gid uint32, ask asking, q *query) (given, error)
	// settle updates own after a read with the answer got. done are the positions of own for which the read has
	// waited.
	settle(own *ownWrites, q *query, done []*session.Seen, got given)

	// history returns the reader of a history.
	history(at history) historyReader

	// serve answers a call of another node.
	serve(ctx context.Context, method string, payload []byte) ([]byte, error)
	// export opens the data of a group as of one moment after the call. The data includes the write at the position
	// after.
	export(ctx context.Context, gid uint32, after raftlog.Position) (*kv.Export, backup.Group, error)
	// close releases all resources. The stop channel of the node was closed before.
	close() error
}

var (
	_ replica = (*server)(nil)
	_ replica = (*sidecar)(nil)
)

// leaders returns the known leader of a group; empty = none is known.
type leaders interface {
	leader(gid uint32) raft.ServerID
}
