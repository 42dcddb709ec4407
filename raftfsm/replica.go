package raftfsm

import (
	"context"

	"github.com/quorate/quorate/raftfsm/backup"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/peercalls"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/session"
)

// replica is the interface through which a node reaches the groups of its cluster. The type server implements it for a
// node with data. The type sidecar implements it for a node without data and sends all calls to servers. A replica is
// safe for concurrent use.
type replica interface {
	// partitions returns the number of groups of the cluster; 0 = not known yet.
	partitions() uint32
	// waitPartitions waits until the number of groups is known.
	waitPartitions(ctx context.Context) (uint32, error)

	peercalls.Leaders
	// waitChange waits until the leader of a group may have changed, or retryPause has passed.
	waitChange(ctx context.Context, gid uint32)
	// ready returns nil if a group can serve reads and writes now, and otherwise the reason why not.
	ready(gid uint32) error
	// route implements Host.Route.
	route(gid uint32) peercalls.Route

	// propose sends an encoded request to the leader of a group, without retries. hasValues is true if the
	// request stores values. A read-only group refuses such a request.
	propose(ctx context.Context, gid uint32, data group.Encoded, ack group.Ack, hasValues bool) (group.Answer, error)
	// writesAllowed returns nil if values can be stored in a group now, and otherwise the reason why not.
	writesAllowed(gid uint32) error

	// ask sends a call to the leader of a group, without retries.
	ask(ctx context.Context, gid uint32, method string, payload []byte) ([]byte, error)

	// read executes q in a group, and stores the result in q. ask describes what the requester has already seen.
	read(ctx context.Context, gid uint32, ask asking, q *query) (given, error)
	// readIndex requests a read index from the leader of a group, without retries. The results are those of
	// leaderIndex.
	readIndex(ctx context.Context, gid uint32, after raftlog.Position) (group.ReadIndex, group.Holding, error)
	// confirm reports whether this node has the entry at the position n, or has applied n if n is committed. It returns
	// n. If n is committed, it replaces the term of n, which a client may have invented, by the term of the group.
	// confirm is always false on a node without data.
	confirm(n session.Seen) (session.Seen, bool)
	// settle updates own, the writes that the next reads wait for, after the read q was answered with got. done are the
	// positions of own for which the read has waited.
	settle(own *ownWrites, q *query, done []*session.Seen, got given)

	// history returns a reader of the changes that a group keeps for watchers.
	history(at history) historyReader

	// serve answers a call of another node.
	serve(ctx context.Context, method string, payload []byte) ([]byte, error)
	// export opens a consistent view of the data of a group. The view includes the write at the given position.
	export(ctx context.Context, gid uint32, after raftlog.Position) (*kv.Export, backup.Group, error)
	// close releases all resources. The caller must first close the stop channel of the node.
	close() error
}

var (
	_ replica = (*server)(nil)
	_ replica = (*sidecar)(nil)
)
