package node

import (
	"context"
	"io"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/backup"
)

// backups implements backup and restore.
type backups struct {
	host   *raftfsm.Host
	config Config
	deps   Deps
}

// SaveBackup writes a backup of all groups to w. This node must be a server, but need not be a leader.
func (b backups) SaveBackup(ctx context.Context, w io.Writer) error {
	t, err := b.host.Backup(ctx, backup.Header{Created: b.deps.Now().UTC(), Program: b.config.Version,
		Cluster: b.config.Cluster.Name}, w)
	if err != nil {
		b.deps.Logger.Warn("the backup is incomplete", "error", fault.Text(err))
		return err
	}
	b.deps.Logger.Info("backup written", "keys", t.Keys, "bytes", t.Bytes)
	return nil
}

// RestoreBackup replaces all data of the cluster by the backup in r.
func (b backups) RestoreBackup(ctx context.Context, r io.Reader) (api.RestoreResult, error) {
	b.deps.Logger.Warn("a restore has begun: it replaces all data once the backup has been read")
	done, err := b.host.Restore(ctx, r)
	if err != nil {
		b.deps.Logger.Error("the restore failed", "error", fault.Text(err))
		return api.RestoreResult{}, err
	}
	b.deps.Logger.Warn("all data was replaced by a backup", "created", done.Header.Created, "of_cluster",
		done.Header.ClusterID, "keys", done.Totals.Keys)
	return api.RestoreResult{
		Created: done.Header.Created, ClusterID: done.Header.ClusterID, Groups: len(done.Header.Groups),
		Keys: done.Totals.Keys, Bytes: done.Totals.Bytes,
	}, nil
}
