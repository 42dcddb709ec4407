package raftfsm

import (
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
	DiskGood DiskState = iota // there is room, as far as is known
	DiskLow                   // less is free than Options.MinFree of that server
	DiskGone                  // the server has failed
)

// groupRoom records whether the voters of a group have enough disk space to store values. The zero value means
// that they have. Safe for concurrent use.
type groupRoom struct {
	readOnly atomic.Pointer[fault.Error] // nil = values can be stored
}

// writesAllowed implements replica.
func (s *server) writesAllowed(gid uint32) error {
	if !s.opened.Load() {
		return nil // nothing can be stored yet, or ever
	}
	if e := s.room[gid].readOnly.Load(); e != nil {
		return e
	}
	return nil
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

// judgeRoom decides for each group whether values can be stored. Only one goroutine calls it.
func (s *server) judgeRoom() {
	for i, g := range s.groups {
		servers, _ := g.Servers()
		now, before := s.lackOfRoom(uint32(i), servers), s.room[i].readOnly.Load() //nolint:gosec // few
		s.room[i].readOnly.Store(now)
		switch {
		case before == nil && now != nil:
			s.opts.Logger.Error(now.Msg+"; reads and deletes go on", "group", i, "hint", now.Hint)
		case before != nil && now == nil:
			s.opts.Logger.Info("the group is not read-only any more", "group", i)
		}
	}
}

// lackOfRoom returns why a group is read-only, or nil. A group is read-only if the disk of a voter is low and no
// majority of voters has a disk with room. A failed voter counts as one without room. Otherwise writes would fill the
// low disk, and the group would stop.
func (s *server) lackOfRoom(gid uint32, servers []raft.Server) *fault.Error {
	own := s.space.full.Load()
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
		Hint: "free some space there; writes open again by themselves, deletes still work"}
}

// diskOf returns the state of a voter's disk. own is the error of this server's disk, or nil.
func (s *server) diskOf(server string, own *fault.Error) DiskState {
	switch {
	case server != s.node.self.Server:
		if s.opts.DiskOf == nil {
			return DiskGood
		}
		return s.opts.DiskOf(server)
	case own != nil:
		return DiskLow
	default:
		return DiskGood
	}
}

// abstains reports whether this server should start no election in a group: its disk is low, and another voter's is
// not.
func (s *server) abstains(gid uint32) bool {
	if s.opts.DiskOf == nil || !s.opened.Load() || s.space.allowed() == nil {
		return false
	}
	servers, _ := s.groups[gid].Servers()
	for _, v := range servers {
		if v.Suffrage == raft.Voter && string(v.ID) != s.node.self.Server && s.opts.DiskOf(string(v.ID)) == DiskGood {
			return true
		}
	}
	return false
}
