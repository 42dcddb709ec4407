package node

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/backup"
)

// SaveSnapshot writes a backup of all groups to w. This node must be a server; it need not lead.
func (n *Node) SaveSnapshot(ctx context.Context, w io.Writer) error {
	t, err := n.host.Backup(ctx, backup.Header{Created: n.deps.Now().UTC(), Program: n.config.Version, Cluster: n.config.Cluster.Name}, w)
	if err != nil {
		n.log.Warn("a backup was not written to its end", "error", fault.Text(err))
		return err
	}
	n.log.Info("backup written", "keys", t.Keys, "bytes", t.Bytes)
	return nil
}

// RestoreSnapshot replaces all data of the cluster by those of the backup that is read from r.
func (n *Node) RestoreSnapshot(ctx context.Context, r io.Reader) (api.RestoreResult, error) {
	n.log.Warn("a restore was asked for: when the backup has been read, it replaces all data")
	done, err := n.host.Restore(ctx, r)
	if err != nil {
		n.log.Error("the restore failed", "error", fault.Text(err))
		return api.RestoreResult{}, err
	}
	n.log.Warn("all data was replaced by a backup", "created", done.Header.Created, "of_cluster", done.Header.ClusterID, "keys", done.Totals.Keys)
	return api.RestoreResult{
		Created: done.Header.Created, ClusterID: done.Header.ClusterID, Groups: len(done.Header.Groups), Keys: done.Totals.Keys, Bytes: done.Totals.Bytes,
	}, nil
}

// Rescue makes the server of a data directory, which must be stopped, the only voter of its
// groups, after agree has seen what it holds and said yes. See raftfsm.Rescue.
func Rescue(dir string, log *slog.Logger, agree func(api.RescueReport) (bool, error)) (api.RescueReport, error) {
	agreed := false
	s, err := raftfsm.Rescue(raftfsm.RescueOptions{Dir: dir, Logger: log, Agree: func(s raftfsm.Survey) (bool, error) {
		yes, err := agree(rescueReport(dir, &s))
		agreed = yes && err == nil
		return yes, err
	}})
	r := rescueReport(dir, &s)
	r.Rescued = agreed && err == nil
	return r, err
}

func rescueReport(dir string, s *raftfsm.Survey) api.RescueReport {
	id := s.Identity
	r := api.RescueReport{
		Node: id.Node, ServerID: id.Server, DataDir: dir, ClusterID: id.Cluster, Epoch: id.Epoch, Alone: s.Alone(), BrokenOff: id.Rescuing != 0,
		Groups: []api.RescueGroup{},
	}
	seen := map[string]bool{id.Server: true}
	for _, g := range s.Groups {
		one := api.RescueGroup{
			ID: uint64(g.ID), LastIndex: g.LastIndex, LastTerm: g.LastTerm, Term: g.Term, AppliedIndex: g.Applied, SnapshotIndex: g.SnapshotIndex,
			Keys: g.Keys, Voters: []string{}, Replicas: []string{},
		}
		for _, v := range g.Servers {
			if v.Suffrage != raft.Voter {
				one.Replicas = append(one.Replicas, string(v.ID))
				continue
			}
			one.Voters = append(one.Voters, string(v.ID))
			if !seen[string(v.ID)] {
				seen[string(v.ID)] = true
				r.Others = append(r.Others, string(v.ID))
			}
		}
		r.Groups = append(r.Groups, one)
	}
	return r
}
