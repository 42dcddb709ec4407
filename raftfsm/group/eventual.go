package group

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/hashicorp/raft"
)

// How many of an entry's writes were to be acknowledged once it was durable on its leader
// stands in the entry's seal, with a tag of that leader. When that very server later gives
// the entry up for another leader's, so many acknowledged writes are lost, and counted.
// This works across restarts, for the count is as durable as the entry. It is not known
// where the server's disk is gone, or where a snapshot has taken the place of the entry.
//
// owed is what a proposer hands to the log as Extensions: mark, tag, count.
const (
	owedMark = 'E'
	owedSize = 1 + 4 + 4
)

// serverTag is a short form of a server id.
func serverTag(id raft.ServerID) uint32 { return crc32.Checksum([]byte(id), castagnoli) }

// owing makes the Extensions of an entry with n writes that are acknowledged early; nil if
// there are none.
func owing(server uint32, n int) []byte {
	if n == 0 {
		return nil
	}
	b := append(make([]byte, 0, owedSize), owedMark)
	b = binary.BigEndian.AppendUint32(b, server)
	return binary.BigEndian.AppendUint32(b, uint32(n)) //nolint:gosec // bounded by the entry
}

// isOwing reports whether Extensions were made by owing, and so not sealed yet.
func isOwing(e []byte) bool { return len(e) == owedSize && e[0] == owedMark }

// owed is how many writes of a sealed entry were acknowledged by the server of that tag
// before they were committed.
func owed(l *raft.Log, server uint32) int {
	e := l.Extensions
	if len(e) != sealOwedSize || e[1] != sealOwedVersion || binary.BigEndian.Uint32(e[sealSize:]) != server {
		return 0
	}
	return int(binary.BigEndian.Uint32(e[sealSize+4:]))
}

// tellLost counts the acknowledged writes among entries lo to hi, which are about to be
// replaced by another leader's.
func (s *logs) tellLost(lo, hi uint64) {
	base, _ := s.base()
	if s.lost == nil || hi < s.last.Load() {
		return // not replaced: compacted
	}
	n := 0
	lo = max(lo, base.Index+1) // what the snapshot covers may be in it; what it contradicts is above it
	for i := lo; i <= hi; i++ {
		var l raft.Log
		if err := s.GetLog(i, &l); err != nil {
			continue // it is being deleted: nobody needs it any more
		}
		n += owed(&l, s.self)
	}
	if n > 0 {
		s.lost(n)
	}
}

// lostWrites counts and reports acknowledged writes that another leader has replaced.
func (g *Group) lostWrites(n int) {
	g.obs.eventualLost.Add(float64(n))
	g.opts.Logger.Warn("eventual writes are lost: this server acknowledged them as leader, and another took over before a quorum had them",
		"group", g.opts.ID, "writes", n)
}

// watchElections counts elections and leaders, and tells of new ones. It is called by raft, and must not block.
func (g *Group) watchElections() {
	g.raft.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		switch d := o.Data.(type) {
		case raft.RaftState:
			if d == raft.Candidate {
				g.obs.elections.Inc()
			}
		case raft.LeaderObservation:
			if d.LeaderID != "" {
				g.obs.leaders.Inc()
				g.opts.NewLeader(d.LeaderID)
				g.changed.fire()
			}
		}
		return false
	}))
}
