package group

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Survey is what a server holds of a group while it is stopped.
type Survey struct {
	ID            uint32
	LastIndex     uint64 // of the log, or of the snapshot below it
	LastTerm      uint64
	Term          uint64 // newest term that was heard of
	Applied       uint64 // on disk in the database; the rest comes from the log
	SnapshotIndex uint64
	Keys          uint64
	Revision      uint64
	Servers       []raft.Server // of the newest configuration it has, committed or not
}

// Voters are the ids of the voters.
func (s *Survey) Voters() []raft.ServerID {
	var out []raft.ServerID
	for _, v := range s.Servers {
		if v.Suffrage == raft.Voter {
			out = append(out, v.ID)
		}
	}
	return out
}

// Examine looks at a group that is not open. It changes no more than a start would.
func Examine(o Options) (s Survey, err error) {
	d, err := openStopped(&o)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	return d.survey(o.ID)
}

// Rescue makes this server the only voter of a group that is not open, and takes everything
// in its log for committed. It may be repeated after an interruption.
//
// The order: the log is applied to the database and the revision counter raised, which is
// durable and changes nothing for a start; then the manifest, in one rename, names a snapshot
// at the end of the log with the new configuration; then the log is deleted. It must go: a
// server that joins later would be built from it, with the old configurations and without
// the raised counter. Between the last two steps the group must not be opened, which the
// caller sees to.
func Rescue(o Options) (s Survey, err error) {
	d, err := openStopped(&o)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if s, err = d.survey(o.ID); err != nil {
		return s, err
	}
	m := d.fsm.machine()
	if err := d.replay(m, s.SnapshotIndex+1, s.LastIndex); err != nil {
		return s, err
	}
	if err := m.Raise(restoreRaise); err != nil {
		return s, err
	}
	o.Step("rescue-raised")
	d.snaps.current.Doubt = nil // an operator has chosen this state
	err = d.snaps.commitLocal(d.snaps.database(), &snapshotInfo{
		Index: s.LastIndex, Term: s.LastTerm, Applied: m.Applied(),
		Configuration: raft.EncodeConfiguration(aloneWith(o.ServerID)), ConfigurationIndex: s.LastIndex,
	})
	if err != nil {
		return s, err
	}
	o.Step("rescue-manifest")
	first, last, err := d.logs.ends()
	if err == nil && last > 0 {
		err = d.logs.DeleteRange(first, last)
	}
	if err != nil {
		return s, err
	}
	o.Step("rescue-done")
	return d.survey(o.ID)
}

// openStopped opens the files of a group without Raft.
func openStopped(o *Options) (*disk, error) {
	*o = o.withDefaults()
	o.Metrics = NewMetrics(prometheus.NewRegistry()) // nobody looks
	d, err := openDisk(*o, o.Metrics.group(o.ID), newClock(time.Now))
	if err != nil {
		return nil, fault.Wrap(err, "group.Rescue", fmt.Sprintf("group %d cannot be opened", o.ID))
	}
	return d, nil
}

// survey reads what there is.
func (d *disk) survey(id uint32) (Survey, error) {
	stats, pos := d.fsm.machine().Stats(), d.snaps.position()
	s := Survey{ID: id, LastIndex: pos.Index, LastTerm: pos.Term, SnapshotIndex: pos.Index, Applied: stats.Applied, Keys: stats.Keys, Revision: stats.Revision}
	var err error
	if s.Term, err = d.stable.GetUint64([]byte("CurrentTerm")); err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
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
	for i := pos.Index + 1; i <= d.logs.last.Load(); i++ {
		l = raft.Log{}
		if err := d.logs.read(i, &l); err != nil {
			return s, err
		}
		if l.Type == raft.LogConfiguration {
			s.Servers = raft.DecodeConfiguration(l.Data).Servers
		}
		s.LastIndex, s.LastTerm = l.Index, l.Term
	}
	if stats.Applied > s.LastIndex {
		// A received database may be ahead of the log that came with it. What is written from
		// now on must come above it, or the machine would take it for applied.
		s.LastIndex, s.LastTerm = stats.Applied, max(s.LastTerm, stats.Term)
	}
	return s, nil
}

// replay applies the log from first to last.
func (d *disk) replay(m *kv.Machine, first, last uint64) error {
	var l raft.Log
	for i := first; i <= last; i++ {
		l = raft.Log{}
		if err := d.logs.read(i, &l); err != nil {
			return err
		}
		e := kv.Entry{Index: l.Index, Term: l.Term}
		switch l.Type {
		case raft.LogCommand:
			e.Data = l.Data
		case raft.LogConfiguration:
		default:
			continue // never reaches the machine
		}
		if r := m.Apply([]kv.Entry{e}); r[0].Err != nil {
			return r[0].Err
		}
	}
	return nil
}
