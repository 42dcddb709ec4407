package raftlog

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/hashicorp/raft"
)

// A leader may acknowledge a write early: as soon as its own disk has the log entry, before a majority has the entry.
// The Extensions of the entry (see Seal) contain the number of such writes and a tag of the leader. If an entry of
// another leader later replaces this entry, the server with that tag counts the writes as lost, even after a restart.
// The server cannot count them if it has lost its disk, or if a snapshot has replaced the entry.
const (
	owedMark = 'E'
	owedSize = 1 + 4 + 4
)

// serverTag returns a short hash of a server id.
func serverTag(id raft.ServerID) uint32 { return crc32.Checksum([]byte(id), castagnoli) }

// owing returns the Extensions of an entry with n writes that the given server acknowledges early: as soon as its own
// disk has the entry, without waiting for a majority. It returns nil if n is 0.
func owing(server uint32, n int) []byte {
	if n == 0 {
		return nil
	}
	b := append(make([]byte, 0, owedSize), owedMark)
	b = binary.BigEndian.AppendUint32(b, server)
	return binary.BigEndian.AppendUint32(b, uint32(n)) //nolint:gosec // bounded by the entry
}

// Owing returns the Extensions of an entry with n writes that this server acknowledges early: as soon as its own disk
// has the entry, without waiting for a majority. It returns nil if n is 0.
func (s *Store) Owing(n int) []byte { return owing(s.self, n) }

// isOwing reports whether e, the Extensions of an entry, is a result of the function owing and is not sealed yet (see
// Seal).
func isOwing(e []byte) bool { return len(e) == owedSize && e[0] == owedMark }

// owed returns how many writes in a sealed entry the server with the given tag acknowledges early (see serverTag). It
// returns 0 if another server has proposed the entry.
func owed(l *raft.Log, server uint32) int {
	e := l.Extensions
	if len(e) != sealOwedSize || e[1] != sealOwedVersion || binary.BigEndian.Uint32(e[sealSize:]) != server {
		return 0
	}
	return int(binary.BigEndian.Uint32(e[sealSize+4:]))
}

// tellLost reports lost writes: those in the entries lo to hi that this server has acknowledged early. Call tellLost
// before these entries are replaced by entries of another leader or by a received snapshot. Entries up to the end of
// the newest snapshot are not counted, because the snapshot may contain them.
func (s *Store) tellLost(lo, hi uint64) {
	if !s.role.Running() {
		return // entries that are deleted while the group is opened are not counted
	}
	base, _ := s.role.Base()
	n := 0
	// Entries up to the end of the snapshot may be part of the snapshot, so they are not counted.
	lo = max(lo, base.Index+1)
	for i := lo; i <= hi; i++ {
		var l raft.Log
		if err := s.GetLog(i, &l); err != nil {
			continue // a damaged entry is deleted now and needs no report
		}
		n += owed(&l, s.self)
	}
	if n > 0 {
		s.events.Lost(n)
	}
}
