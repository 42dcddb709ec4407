package raftfsm

import (
	"context"
	"io"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// quorumTime is how long the first step of a backup or a restore may wait for a leader. It is longer than an election.
const quorumTime = 10 * time.Second

// Backup writes a backup of all groups to w. Applications can write while it runs. The backup of each group is
// consistent and contains every write that was acknowledged before the call. The groups are saved at slightly different
// times, which is safe because no transaction spans two groups.
//
// Backup adds the fields about this node and its cluster to the header. After an error, w contains an incomplete
// backup. Besides the errors of w, Backup returns:
//
//	unavailable  there is no quorum, or the node belongs to no cluster
//	unavailable  a received snapshot has replaced the local replica during the backup
//	timeout      ctx has ended
//	invalid      the node has no data
func (h *Host) Backup(ctx context.Context, header backup.Header, w io.Writer) (backup.Totals, error) {
	t, err := h.backup(ctx, header, w)
	h.metrics.saved(t, err)
	return t, err
}

func (h *Host) backup(ctx context.Context, about backup.Header, w io.Writer) (t backup.Totals, err error) {
	id := h.Identity()
	if err := h.holdsData("raftfsm.Backup", id); err != nil {
		return t, err
	}
	about.Node, about.ClusterID, about.Epoch, about.Partitions = id.Node, id.Cluster, id.Epoch, id.Partitions
	about.Formats.Command = command.Version
	views := make([]*kv.Export, len(h.groups))
	defer func() {
		for _, v := range views {
			if v != nil {
				v.Close()
			}
		}
	}()
	for i := range h.groups {
		var g backup.Group
		if views[i], g, err = h.replica.export(ctx, uint32(i), h.router.group(uint32(i)).own.newest().Pos); err != nil {
			return t, fault.Wrap(err, "raftfsm.Backup", "group "+utoa(uint32(i))+" cannot be saved")
		}
		about.Groups = append(about.Groups, g)
	}
	out, err := backup.NewWriter(w, about)
	if err != nil {
		return t, err
	}
	for i, v := range views {
		if err := saveGroup(ctx, out, uint32(i), v); err != nil {
			return t, err
		}
		v.Close() // lets Pebble free the disk space of overwritten records
	}
	return out.Close()
}

// holdsData returns nil if this node has replicas. Otherwise it returns an error for the operation op.
func (h *Host) holdsData(op string, id datadir.Identity) error {
	switch {
	case h.node.allowed() != nil:
		return h.node.allowed()
	case id.Cluster == "":
		return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "this node belongs to no cluster yet",
			Hint: "see quorate status for what it waits for"}
	case len(h.groups) == 0:
		return errNoData(op)
	}
	return nil
}

func errNoData(op string) error {
	return &fault.Error{Code: fault.Invalid, Op: op, Msg: "this node holds no data",
		Hint: "run the command on a server of the cluster"}
}

// export implements replica. If the leader's log contains the entry at the given position, the exported data includes
// this entry, even if it is not committed yet when export is called.
func (s *server) export(ctx context.Context, gid uint32, after raftlog.Position) (*kv.Export, backup.Group, error) {
	r := reading{server: s, group: s.groups[gid], id: gid}
	limit, cancel := context.WithTimeout(ctx, quorumTime)
	ri, _, err := r.readIndex(limit, after)
	cancel()
	if err != nil {
		return nil, backup.Group{}, err
	}
	for {
		if err := r.group.WaitApplied(ctx, ri.Index); err != nil {
			return nil, backup.Group{}, err
		}
		m := r.group.Machine()
		e, err := m.Export()
		if doubt := r.group.Trusted(); err == nil && doubt != nil {
			e.Close()
			return nil, backup.Group{}, doubt
		}
		if fault.Is(err, fault.Unavailable) && m != r.group.Machine() {
			continue // a received snapshot replaced the machine
		}
		if err != nil {
			return nil, backup.Group{}, err
		}
		return e, backup.Group{ID: gid, Index: ri.Index, Term: ri.Term, Applied: e.Applied, Revision: e.Revision,
			Clock: e.Clock}, nil
	}
}

func saveGroup(ctx context.Context, out *backup.Writer, gid uint32, v *kv.Export) error {
	if err := out.Begin(gid); err != nil {
		return err
	}
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return &fault.Error{Code: fault.Timeout, Op: "raftfsm.Backup", Msg: "the backup was given up", Err: err}
		}
		var part kv.Exported
		var err error
		part, more, err = v.Next(backup.PartSize)
		if fault.Is(err, fault.Unavailable) {
			return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Backup", Msg: "the replica of group " +
				utoa(gid) + " was closed or replaced while it was read", Err: err,
				Hint: "save again"}
		}
		if err == nil {
			err = savePart(out, &part)
		}
		if err != nil {
			return err
		}
	}
	_, err := out.End()
	return err
}

func savePart(out *backup.Writer, part *kv.Exported) error {
	records := make([]backup.Record, 0, len(part.Records))
	for i := range part.Records {
		o := &part.Records[i]
		if o.Store == systemStore {
			continue // tombstones belong to this cluster, not to its data
		}
		records = append(records, backup.Record{Store: o.Store, Key: o.Key, Value: o.Value, ContentType: o.ContentType,
			ExpireAt: o.ExpireAt})
	}
	if err := out.Records(records); err != nil {
		return err
	}
	list := make([]backup.Remembered, len(part.Remembered))
	for i := range part.Remembered {
		list[i] = backup.Remembered(part.Remembered[i])
	}
	return out.Remembered(list)
}
