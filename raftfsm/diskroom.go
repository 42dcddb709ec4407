package raftfsm

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/placement"
)

// DiskState is what this server knows of the disk of another server.
type DiskState uint8

// The states of a disk.
const (
	DiskUnknown DiskState = iota // counts as a disk with room
	DiskGood                     // there is room, as far as is known
	DiskLow                      // less space is free than Options.MinFree of that server
	DiskGone                     // the server has failed
)

// groupRoom records whether a group accepts new values. For a read-only group, it holds the error that names the voters
// with too little free disk space. The zero value accepts values. It is safe for concurrent use.
type groupRoom struct {
	readOnly atomic.Pointer[fault.Error] // nil = values can be stored
}

// writesAllowed implements replica.
func (s *server) writesAllowed(gid uint32) error {
	if !s.opened.Load() {
		return nil // without open groups, nothing can be stored
	}
	if e := s.room[gid].readOnly.Load(); e != nil {
		return e
	}
	return nil
}

// admitValues admits a write of values to a group, or returns an error if the values cannot be stored. The parameter
// size is the size of the values in bytes, which counts against the free space of this server. If err is nil, the
// caller must call done after the write. admitValues may block (see datadir.Space.Admit).
func (s *server) admitValues(ctx context.Context, gid uint32, size int) (done func(), err error) {
	if err := s.writesAllowed(gid); err != nil {
		return nil, err
	}
	if done, err = s.space.Admit(ctx, uint64(size)); err != nil { //nolint:gosec // not negative
		return nil, err
	}
	if err := s.writesAllowed(gid); err != nil { // the disk may have been measured while Admit waited
		done()
		return nil, err
	}
	return done, nil
}

// anyReadOnly reports whether any group is read-only.
func (s *server) anyReadOnly() bool {
	for i := range s.room {
		if s.room[i].readOnly.Load() != nil {
			return true
		}
	}
	return false
}

// judgeRoom makes each group read-only or writable, as determined by lackOfRoom. It logs each change. It must not be
// called concurrently.
func (s *server) judgeRoom() {
	for i, g := range s.groups {
		servers, _ := g.Servers()
		now, before := s.lackOfRoom(uint32(i), servers), s.room[i].readOnly.Load() //nolint:gosec // few
		s.room[i].readOnly.Store(now)
		switch {
		case before == nil && now != nil:
			s.opts.Logger.Error(now.Msg+"; reads and deletes still work", "group", i, "hint", now.Hint)
		case before != nil && now == nil:
			s.opts.Logger.Info("the group accepts writes again", "group", i)
		}
	}
}

// lackOfRoom returns an error if a group must be read-only, because further writes could fill the disks and stop the
// group. It returns nil otherwise.
//
// A group must be read-only if the disk of at least one voter is nearly full, and no majority of the voters has enough
// free space. A failed voter counts as one without free space.
func (s *server) lackOfRoom(gid uint32, servers []raft.Server) *fault.Error {
	own := s.space.Low()
	voters, room := 0, 0
	var low, gone []string
	for _, v := range servers {
		if v.Suffrage != raft.Voter {
			continue
		}
		voters++
		switch node := placement.NodeOf(string(v.ID)); s.diskOf(string(v.ID), own) {
		case DiskLow:
			low = append(low, node)
		case DiskGone:
			gone = append(gone, node)
		default:
			room++
		}
	}
	if len(low) == 0 || 2*room > voters {
		return nil
	}
	msg := fmt.Sprintf("group %d is read-only: the disks of %d of %d voters are nearly full: %s", gid, len(low), voters,
		strings.Join(low, ", "))
	if voters == 1 && own != nil {
		msg = "the store is read-only: " + own.Msg // there is no other disk to name
	}
	if len(gone) > 0 {
		msg += "; failed: " + strings.Join(gone, ", ")
	}
	return &fault.Error{Code: fault.ReadOnly, Op: "raftfsm.space", Key: s.opts.Dir, Msg: msg,
		Hint: "free some space there, or delete keys; writes open again by themselves within a minute"}
}

// diskOf returns the state of the disk of a voter. selfErr is the error for this server's disk, or nil if that disk
// has enough free space.
func (s *server) diskOf(server string, selfErr *fault.Error) DiskState {
	switch {
	case server != s.node.self.Server:
		return s.opts.Cluster.DiskOf(server)
	case selfErr != nil:
		return DiskLow
	default:
		return DiskGood
	}
}

// abstains reports whether this server should leave the elections of a group to other servers. It returns true if the
// disk of this server is nearly full and the disk of another voter has enough space.
func (s *server) abstains(gid uint32) bool {
	if !s.opened.Load() || s.space.Low() == nil {
		return false
	}
	servers, _ := s.groups[gid].Servers()
	for _, v := range servers {
		other := v.Suffrage == raft.Voter && string(v.ID) != s.node.self.Server
		if other && s.opts.Cluster.DiskOf(string(v.ID)) == DiskGood {
			return true
		}
	}
	return false
}
