package node

import (
	"context"
	"io"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node/backups"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/backup"
)

// backupService implements backup and restore.
type backupService struct {
	host   *raftfsm.Host
	config Config
	deps   Deps
}

// SaveBackup writes a backup of all groups to w. This node must be a server, but need not be a leader. After an
// error, the backup in w is incomplete.
func (b backupService) SaveBackup(ctx context.Context, w io.Writer) error {
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
func (b backupService) RestoreBackup(ctx context.Context, r io.Reader) (schema.RestoreResult, error) {
	b.deps.Logger.Warn("a restore has begun: it replaces all data once the backup has been read")
	done, err := b.host.Restore(ctx, r)
	if err != nil {
		b.deps.Logger.Error("the restore failed", "error", fault.Text(err))
		return schema.RestoreResult{}, err
	}
	b.deps.Logger.Warn("all data was replaced by a backup", "created", done.Header.Created, "of_cluster",
		done.Header.ClusterID, "keys", done.Totals.Keys)
	return schema.RestoreResult{
		Created: done.Header.Created, ClusterID: done.Header.ClusterID, Groups: len(done.Header.Groups),
		Keys: done.Totals.Keys, Bytes: done.Totals.Bytes,
	}, nil
}

// backupNote is the name of the replicated note that holds the record of scheduled backups.
const backupNote = "backups"

// backupCluster implements backups.Cluster.
type backupCluster struct{ backupService }

// Leads implements backups.Cluster. It reports whether this node leads group 0. The leader of group 0 writes the
// scheduled backups, because group 0 stores the record of backups.
func (b backupCluster) Leads() bool { return b.host.Leader(0) == b.host.Identity().Server }

// Record implements backups.Cluster.
func (b backupCluster) Record(ctx context.Context) ([]byte, uint64, error) {
	n, err := b.host.Note(ctx, backupNote)
	return n.Value, n.Revision, err
}

// SetRecord implements backups.Cluster.
func (b backupCluster) SetRecord(ctx context.Context, text []byte, revision uint64) (uint64, error) {
	return b.host.SetNote(ctx, backupNote, text, revision)
}

// LocalRecord implements backups.Cluster.
func (b backupCluster) LocalRecord() ([]byte, error) {
	n, err := b.host.LocalNote(backupNote)
	return n.Value, err
}

// buildBackups starts the schedule of backups. On a sidecar, the schedule writes no backups. When the node stops, a
// running backup ends before the leaderships of the node are transferred.
func (n *Node) buildBackups(context.Context) error {
	c := n.config.Backup
	o := backups.Options{Node: n.host.Identity().Node, Prefix: n.config.Cluster.Name,
		Cluster: backupCluster{backupService{n.host, n.config, n.deps}}, Logger: n.deps.Logger,
		Registerer: n.deps.Registry, Now: n.deps.Now}
	if c.enabled() && !n.config.Cluster.sidecar() {
		o.Config = backups.Config{Directory: c.Directory, Command: c.Command, Every: c.Every, Keep: c.Keep,
			Verify: !c.NoVerify, KeyFile: c.KeyFile}
	}
	s := backups.New(o)
	n.status.SetBackups(s)
	return n.loop("scheduled backups", s.Run)
}
