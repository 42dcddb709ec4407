package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/session"
)

const (
	stepTime = 30 * time.Second // how long one step of a restore may wait for a leader
	takeOver = 20 * time.Second // how long a restore waits until an earlier one has ended or makes no progress
)

const (
	// maxProposal is the maximum size in bytes of a request in the log. It is above MaxRequest, because a chunk of a
	// restore may contain one operation of that size in addition to its other fields.
	maxProposal = MaxRequest + 1<<10

	// itemOverhead is the maximum number of bytes that the encoding of a record or of a remembered result adds to
	// its strings and its value. These bytes are kinds, lengths, times and numbers.
	itemOverhead = 64
)

const _ = uint(group.MaxRequest - maxProposal) // does not compile if a group refuses such a request

// Restored describes the backup that a restore has put in place.
type Restored struct {
	Header backup.Header // of the backup
	Totals backup.Totals
}

// Restore replaces all data of all groups with the backup in r. It first writes the backup to a second set of tables in
// each group (staging), while the live data stays in use. After Restore has verified all of r, one final log entry per
// group replaces the live data with the staged data. This also discards writes that were made during the restore.
//
// If Restore fails or this node crashes before the first final entry, the live data is unchanged and the staged data is
// dropped. If Restore fails later, the error names the number of groups that are restored. Restore can then be run
// again. An interrupted restore delays a new one by ten seconds. Restore returns these errors:
//
//	invalid        the backup is from another program or version, or has a different number of partitions, or this
//	               node has no data
//	corrupt        the backup is damaged
//	too_large      the backup has a record that does not fit into a log entry
//	conflict       another restore is running
//	read_only      disks are nearly full
//	unavailable    there is no quorum, or this node belongs to no cluster
//	indeterminate  some groups may be restored
func (h *Host) Restore(ctx context.Context, r io.Reader) (Restored, error) {
	if !h.restoring.TryLock() {
		return Restored{}, errRestoring()
	}
	defer h.restoring.Unlock()
	out, err := h.restore(ctx, r)
	h.metrics.restored(err)
	return out, err
}

func errRestoring() error {
	return &fault.Error{Code: fault.Conflict, Op: opRestore, Msg: "another restore is running",
		Hint: "wait until it has ended"}
}

const opRestore = "raftfsm.Restore"

func (h *Host) restore(ctx context.Context, r io.Reader) (Restored, error) {
	in, err := backup.NewReader(r)
	if err != nil {
		return Restored{}, err
	}
	id := h.Identity()
	if err := h.holdsData(opRestore, id); err != nil {
		return Restored{}, err
	}
	if in.Header.Partitions != id.Partitions {
		return Restored{}, &fault.Error{Code: fault.Invalid, Op: opRestore,
			Msg:  fmt.Sprintf("the backup has %d partitions, this cluster has %d", in.Header.Partitions, id.Partitions),
			Hint: fmt.Sprintf("restore it into a new cluster started with --partitions %d", in.Header.Partitions)}
	}
	for i := range in.Header.Groups {
		if g := &in.Header.Groups[i]; g.Revision > kv.MaxBackupRevision {
			return Restored{}, &fault.Error{Code: fault.Corrupt, Op: opRestore,
				Msg: fmt.Sprintf("the header of the backup has revision %d for group %d, the limit is %d", g.Revision,
					g.ID, uint64(kv.MaxBackupRevision)),
				Hint: "use another copy of the file; nothing was changed"}
		}
	}
	s := &restore{host: h, id: rand.Uint64() | 1, in: in, parts: make([]uint64, len(h.groups))}
	totals, err := s.stage(ctx)
	if err != nil {
		s.abort()
		return Restored{}, err
	}
	// The commit continues if the caller gives up. Otherwise only some of the groups would have the backup.
	return Restored{Header: in.Header, Totals: totals}, s.commit(context.WithoutCancel(ctx))
}

// restore is one running restore.
type restore struct {
	host  *Host
	id    uint64
	in    *backup.Reader
	begun uint32   // number of groups that were begun
	parts []uint64 // number of staged chunks, by group
}

// stage reads the whole backup and sends it to the groups.
func (s *restore) stage(ctx context.Context) (totals backup.Totals, err error) {
	for {
		p, err := s.in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return totals, nil
		case err != nil:
			return totals, err
		case p.Begins:
			err = s.begin(ctx, p.Group)
		case p.Ends:
			totals.Keys += p.Totals.Keys
			totals.Remembered += p.Totals.Remembered
			totals.Bytes += p.Totals.Bytes
		default:
			err = s.chunk(ctx, &p)
		}
		if err != nil {
			return totals, fault.Wrap(err, opRestore, "group "+utoa(p.Group)+" cannot be restored")
		}
	}
}

// begin starts the restore of a group. The group returns fault.Conflict if another restore was active in the last
// ten seconds. begin retries for 20 seconds before it returns this error.
func (s *restore) begin(ctx context.Context, gid uint32) error {
	s.begun = gid + 1
	for last := time.Now().Add(takeOver); ; {
		_, err := s.step(ctx, gid, &command.Request{Restore: &command.Restore{Step: command.StepBegin,
			Revision: s.in.Header.Groups[gid].Revision}})
		if !fault.Is(err, fault.Conflict) || time.Now().After(last) || ctx.Err() != nil ||
			s.host.router.retry.closing() {
			return err
		}
		s.host.groups[gid].WaitChange(ctx, time.Second)
	}
}

// chunk sends a part of the backup to its group. A part may be larger than a request, so chunk splits it.
func (s *restore) chunk(ctx context.Context, p *backup.Part) error {
	r, size := s.newChunk(p.Group), 0
	// fit makes room in r for an item of n bytes. If r is too full for the item, fit sends r and begins a new chunk.
	fit := func(n int) error {
		if size > 0 && size+n > MaxRequest {
			if err := s.send(ctx, p.Group, r); err != nil {
				return err
			}
			r, size = s.newChunk(p.Group), 0
		}
		size += n
		return nil
	}
	for i := range p.Records {
		rec := &p.Records[i]
		if partitionOf(rec.Store, rec.Key, s.in.Header.Partitions) != p.Group {
			return &fault.Error{Code: fault.Corrupt, Op: opRestore, Key: rec.Key,
				Msg: "a key of the backup lies in the wrong group", Hint: "use another copy of the file"}
		}
		err := fit(len(rec.Store) + len(rec.Key) + len(rec.Value) + len(rec.ContentType) + itemOverhead)
		if err != nil {
			return err
		}
		r.Ops = append(r.Ops, command.Op{Kind: command.OpSet, Store: rec.Store, Key: rec.Key, Value: rec.Value,
			ContentType: rec.ContentType, ExpireAt: rec.ExpireAt})
	}
	for i := range p.Remembered {
		m := command.Remembered(p.Remembered[i])
		if err := checkRemembered(&m); err != nil {
			return err
		}
		if err := fit(len(m.Key) + len(m.Result) + itemOverhead); err != nil {
			return err
		}
		r.Restore.Remembered = append(r.Restore.Remembered, m)
	}
	return s.send(ctx, p.Group, r)
}

// checkRemembered returns fault.Corrupt if the state machine cannot decode a remembered result. Such a result must not
// reach the log, because all replicas would fail when its request is retried.
func checkRemembered(m *command.Remembered) error {
	if err := kv.CheckRemembered(m); err != nil {
		return &fault.Error{Code: fault.Corrupt, Op: opRestore,
			Msg: "a remembered result of the backup cannot be decoded", Err: err, Hint: "use another copy of the file"}
	}
	return nil
}

// newChunk returns the next chunk of a group, without data.
func (s *restore) newChunk(gid uint32) *command.Request {
	return &command.Request{Restore: &command.Restore{Step: command.StepChunk, Part: s.parts[gid]}}
}

// send proposes a chunk to a group, and counts the chunk in s.parts.
func (s *restore) send(ctx context.Context, gid uint32, r *command.Request) error {
	if _, err := s.step(ctx, gid, r); err != nil {
		return err
	}
	s.parts[gid]++
	return nil
}

// commit puts the staged data in place, one group after the other.
func (s *restore) commit(ctx context.Context) error {
	for gid := range uint32(len(s.parts)) {
		a, err := s.step(ctx, gid, &command.Request{Restore: &command.Restore{Step: command.StepCommit,
			Part: s.parts[gid]}})
		if err != nil {
			return partly(err, gid, uint32(len(s.parts)))
		}
		s.host.router.noteRestore(session.Seen{Group: gid, Pos: a.Position, Committed: true})
	}
	return nil
}

// partly returns the error of a restore that failed with err while it replaced the live data of a group. The parameter
// at is the id of this group, and groups is the number of all groups. The groups with lower ids are already restored.
func partly(err error, at, groups uint32) error {
	msg := "the data was staged, but it is not known whether it was put in place"
	if groups > 1 {
		msg = fmt.Sprintf("%d of %d groups hold the backup now, and group %d may", at, groups, at)
	}
	return &fault.Error{Code: fault.Indeterminate, Op: opRestore, Msg: msg, Err: err, Hint: "run the restore again"}
}

// abort drops the staged data of all groups that it can reach within two seconds. The other groups drop their staged
// data later on their own.
func (s *restore) abort() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for gid := range s.begun {
		_, _ = s.step(ctx, gid, &command.Request{Restore: &command.Restore{Step: command.StepAbort}})
	}
}

// step proposes one step of the restore to a group. It retries until stepTime has passed, or quorumTime for the first
// step. A retry is safe, because a repeated step changes no data.
func (s *restore) step(ctx context.Context, gid uint32, r *command.Request) (group.Answer, error) {
	r.Kind, r.Restore.ID = command.KindRestore, s.id
	data, err := command.EncodeRequest(r, maxProposal)
	if fault.Is(err, fault.TooLarge) {
		err = &fault.Error{Code: fault.TooLarge, Op: opRestore,
			Msg:  "the backup has a record that is larger than a log entry may be",
			Hint: "name a file that quorate backup save has written"}
	}
	if err != nil {
		return group.Answer{}, err
	}
	patience := stepTime
	if r.Restore.Step == command.StepBegin {
		patience = quorumTime
	}
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		a, err := s.host.replica.propose(limit, gid, data, group.Committed, r.Restore.Step == command.StepChunk)
		if err == nil {
			return a, s.outcome(&a)
		}
		if fault.Is(err, fault.Overloaded) && limit.Err() == nil && !s.host.router.retry.closing() {
			s.host.groups[gid].WaitChange(limit, retryPause)
			continue
		}
		if !s.host.router.retry.again(limit, s.host.replica, gid, err) {
			if limit.Err() != nil && ctx.Err() == nil {
				err = noQuorum(opRestore, s.host.replica, gid, err)
			}
			return a, err
		}
	}
}

// outcome returns the error for the result of a step, or nil if the state machine has applied the step.
func (s *restore) outcome(a *group.Answer) error {
	switch a.Result.Outcome {
	case kv.Applied:
		return nil
	case kv.Conflict:
		return errRestoring()
	case kv.Stale:
		return &fault.Error{Code: fault.Conflict, Op: opRestore,
			Msg:  "the restore was aborted: another one replaced it, or it made no progress for too long",
			Hint: "run one restore at a time"}
	default:
		return fault.New(fault.Internal, opRestore, "the state machine answered "+a.Result.Outcome.String())
	}
}
