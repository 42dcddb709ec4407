package raftfsm

import (
	"context"
	"os"
	"path/filepath"
)

// identify reads the identity of a server's data directory. In an empty directory it creates an identity. It
// writes the identity before the groups are created, so that the next start can complete an interrupted creation
// of groups.
func identify(ctx context.Context, o Options) (Identity, error) {
	id, err := readIdentity(o.Dir)
	if err != nil {
		return Identity{}, err
	}
	if id != nil && id.Role != RoleSidecar {
		if err := id.agree(o); err != nil {
			return *id, err
		}
		return *id, id.followPartitions(ctx, o)
	}
	if id != nil && o.NodeID == "" {
		// the directory of a sidecar, which holds no data: replace its identity by that of a server
		o.DefaultID = id.Node
	}
	id = newIdentity(o)
	if o.Bootstrap {
		id.Cluster, id.Forming = randomID(), true
	} else if n := id.clusterPartitions(ctx, o); n != 0 {
		id.Partitions = n
	}
	return *id, id.write(o.Dir)
}

// clusterPartitions returns the number of partitions of the cluster that this server is about to join. It returns
// 0 if the options set the number, or if the cluster's number is not known.
func (id *Identity) clusterPartitions(ctx context.Context, o Options) uint32 {
	if o.Partitions != 0 || o.Count == nil {
		return 0
	}
	return o.Count(ctx, id.Node)
}

// followPartitions sets the number of partitions of a new directory to that of the cluster that it is about to join.
// It deletes the existing groups, which are empty. If a crash interrupts it, the next start repeats it.
func (id *Identity) followPartitions(ctx context.Context, o Options) error {
	if id.Cluster != "" || id.Forming || id.Removed {
		return nil
	}
	n := id.clusterPartitions(ctx, o)
	if n == 0 || n == id.Partitions {
		return nil
	}
	o.Logger.Info("adopted the number of partitions of the cluster to join", "dir", o.Dir, "had", id.Partitions,
		"partitions", n)
	id.Partitions, id.Made, id.Floors = n, false, false
	if err := id.write(o.Dir); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(o.Dir, "groups")); err != nil {
		return dirError(err, o.Dir)
	}
	return nil
}
