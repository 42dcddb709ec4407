package datadir

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// Settings are the settings for a data directory. Identify creates the identity of a new directory from them. If the
// directory already has an identity, the settings must agree with it.
type Settings struct {
	Dir        string
	NodeID     string         // empty = from the directory, or DefaultID
	DefaultID  string         // node id for a new directory if NodeID is empty; empty = a random one
	Partitions uint32         // 0 = from the directory; before this server has a cluster, from Cluster, or 1
	Cluster    Cluster        // the cluster that the node is about to join; nil = unknown
	Engine     raftlog.Engine // empty = from the directory, or wal
	Bootstrap  bool           // form a cluster with only this node if the directory is new
	Logger     *slog.Logger
}

// Cluster is the cluster that a node is about to join.
type Cluster interface {
	// CountPartitions returns the number of partitions of the cluster; 0 = unknown. node is the id of the node that
	// joins.
	CountPartitions(ctx context.Context, node string) uint32
}

// Identify returns the identity of a server's data directory. If the directory is empty or was used by a sidecar,
// Identify creates an identity and writes it to the directory. The identity is written before any group is created, so
// that the next start can complete a creation that was interrupted.
//
// Identify returns fault.Invalid if the settings contradict the identity of the directory. The other errors are those
// of ReadIdentity.
func Identify(ctx context.Context, s Settings) (Identity, error) {
	id, err := ReadIdentity(s.Dir)
	if err != nil {
		return Identity{}, err
	}
	if id != nil && id.Role != RoleSidecar {
		if err := id.agree(s); err != nil {
			return *id, err
		}
		return *id, id.followPartitions(ctx, s)
	}
	if id != nil && s.NodeID == "" {
		// the directory of a sidecar, which holds no data: replace its identity by that of a server
		s.DefaultID = id.Node
	}
	id = newIdentity(s)
	if s.Bootstrap {
		id.Cluster, id.Forming = RandomID(), true
	} else if n := id.clusterPartitions(ctx, s); n != 0 {
		id.Partitions = n
	}
	return *id, id.Write(s.Dir)
}

// IdentifySidecar returns the identity of a sidecar's data directory. It creates an identity if the directory has none.
// It returns an error if the settings contradict the identity, or if the directory belongs to a server. A server must
// not restart as a sidecar, because its groups would then lack a replica.
func IdentifySidecar(s Settings) (Identity, error) {
	id, err := ReadIdentity(s.Dir)
	if err != nil {
		return Identity{}, err
	}
	switch {
	case id == nil:
		id = &Identity{Node: s.newNodeID(), Role: RoleSidecar}
		return *id, id.Write(s.Dir)
	case id.Role != RoleSidecar:
		return *id, &fault.Error{Code: fault.Invalid, Op: "raftfsm.Open", Key: s.Dir,
			Msg: fmt.Sprintf("the data directory %s holds the data of server %s, which a sidecar would not serve",
				s.Dir, id.Node),
			Hint: "start it with --role server; or, to make it a sidecar, run quorate leave there first and then " +
				"name another --data-dir"}
	}
	return *id, id.agree(s)
}

// clusterPartitions returns the number of partitions of the cluster that this server is about to join. It returns 0
// if the number is unknown, or if the settings already contain a number.
func (id *Identity) clusterPartitions(ctx context.Context, s Settings) uint32 {
	if s.Partitions != 0 || s.Cluster == nil {
		return 0
	}
	return s.Cluster.CountPartitions(ctx, id.Node)
}

// followPartitions adopts the number of partitions of the cluster that this server is about to join. It does nothing if
// this server already belongs to a cluster. If the number changes, followPartitions deletes the groups, which are still
// empty. A crash before the deletion does no harm, because the empty groups can stay.
func (id *Identity) followPartitions(ctx context.Context, s Settings) error {
	if id.Cluster != "" || id.Forming || id.Removed {
		return nil
	}
	n := id.clusterPartitions(ctx, s)
	if n == 0 || n == id.Partitions {
		return nil
	}
	s.Logger.Info("adopted the number of partitions of the cluster to join", "dir", s.Dir, "had", id.Partitions,
		"partitions", n)
	id.Partitions, id.Made = n, false
	if err := id.Write(s.Dir); err != nil {
		return err
	}
	if err := os.RemoveAll(groups(s.Dir)); err != nil {
		return unusable(err, s.Dir)
	}
	return nil
}
