package group

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/snapshot"
)

// Survey describes what a stopped server holds of a group.
type Survey struct {
	ID            uint32
	LastIndex     uint64 // the highest of: the last index of the log, the snapshot's index, the database's index
	LastTerm      uint64
	Term          uint64 // newest term known
	Applied       uint64 // index of the newest entry in the database; later entries are only in the log
	SnapshotIndex uint64
	Keys          uint64
	Revision      uint64
	Servers       []raft.Server // servers of the newest configuration on this server, committed or not
}

// Voters returns the ids of the voters.
func (s *Survey) Voters() []raft.ServerID {
	var out []raft.ServerID
	for _, v := range s.Servers {
		if v.Suffrage == raft.Voter {
			out = append(out, v.ID)
		}
	}
	return out
}

// Examine describes what a stopped server has stored for a group. The group must not be open. Examine opens the files
// and may change them in the same way as a start of the server.
func Examine(o Options) (s Survey, err error) {
	d, err := openStopped(&o)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	return d.survey(o.ID)
}

// Rescue makes this server the only voter of a group whose other voters were lost. It treats every entry in the log
// of this server as committed. The group must not be open, and must stay closed until Rescue returns. If Rescue is
// interrupted, run it again.
//
// Rescue applies the log to the database and raises the revision counter. It then replaces the manifest atomically;
// the new manifest names a snapshot at the end of the log, with the new configuration. Last, it deletes the log,
// which contains old configurations.
func Rescue(o Options) (s Survey, err error) {
	d, err := openStopped(&o)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if s, err = d.survey(o.ID); err != nil {
		return s, err
	}
	m := d.fsm.Machine()
	// A received database may be ahead of the log. It then holds the entries up to s.LastIndex that the log lacks.
	if err := snapshot.Replay(d.logs, m, s.SnapshotIndex+1, d.logs.Last()); err != nil {
		return s, err
	}
	if err := m.Raise(snapshot.RestoreRaise); err != nil {
		return s, err
	}
	o.Step("rescue-raised")
	err = d.snaps.CommitRescued(&snapshot.Info{
		Index: s.LastIndex, Term: s.LastTerm, Applied: m.Applied(),
		Configuration: raft.EncodeConfiguration(aloneWith(o.ServerID)), ConfigurationIndex: s.LastIndex,
	})
	if err != nil {
		return s, err
	}
	o.Step("rescue-manifest")
	first, last, err := d.logs.Ends()
	if err == nil && last > 0 {
		err = d.logs.DeleteRange(first, last)
	}
	if err != nil {
		return s, err
	}
	o.Step("rescue-done")
	return d.survey(o.ID)
}

// openStopped opens the files of a group without running Raft.
func openStopped(o *Options) (*disk, error) {
	*o = o.withDefaults()
	o.Metrics = NewMetrics(prometheus.NewRegistry()) // not exported
	d, err := openDisk(*o, o.Metrics.group(o.ID), newClock(time.Now))
	if err != nil {
		return nil, fault.Wrap(err, "group.Rescue", fmt.Sprintf("group %d cannot be opened", o.ID))
	}
	return d, nil
}

// survey returns what the files of the group contain.
func (d *disk) survey(id uint32) (Survey, error) {
	stats, pos := d.fsm.Machine().Stats(), d.snaps.Position()
	s := Survey{ID: id, LastIndex: pos.Index, LastTerm: pos.Term, SnapshotIndex: pos.Index, Applied: stats.Applied,
		Keys: stats.Keys, Revision: stats.Revision}
	var err error
	if s.Term, err = d.stable.CurrentTerm(); err != nil {
		return s, err
	}
	metas, err := d.snaps.List()
	if err != nil {
		return s, err
	}
	for _, m := range metas {
		s.Servers = m.Configuration.Servers
	}
	var l raft.Log
	for i := pos.Index + 1; i <= d.logs.Last(); i++ {
		l = raft.Log{}
		if err := d.logs.Read(i, &l); err != nil {
			return s, err
		}
		if l.Type == raft.LogConfiguration {
			s.Servers = raft.DecodeConfiguration(l.Data).Servers
		}
		s.LastIndex, s.LastTerm = l.Index, l.Term
	}
	if stats.Applied > s.LastIndex {
		// A received database may be ahead of the log that came with it. New entries must have a higher index,
		// or the machine would consider them applied.
		s.LastIndex, s.LastTerm = stats.Applied, max(s.LastTerm, stats.Term)
	}
	return s, nil
}
