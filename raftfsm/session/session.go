// Package session encodes session tokens, and caches the token that was used last. A token contains the id of the
// cluster and, for each group, the newest log position (term and index) that the application has seen. A read with a
// token never returns data from before these positions, unless the answer is marked as stale.
//
// A token may have several positions of a group if the leader of the group has changed. For example, an application has
// seen an uncommitted write of the first leader, and then a position of the second leader with a greater index. The
// uncommitted write may still be lost, so the token keeps both positions. The next eventual read waits for both, or
// reports the loss. After its answer, the token has one position of the group again.
//
// A token is base64url without padding. The content is version 1 (1 byte) and the cluster (8 bytes), followed by three
// uvarints for each position: the id of the group, the term, and index<<1|committed. The positions are in ascending
// order of group and term.
//
// Tokens are not signed, so a client can invent positions. The caller must verify a position before other requests
// depend on it. Parse accepts at most maxLeaders positions for each group of the cluster, and Cache.After never writes
// more.
//
// The package owns the format of tokens. It has no goroutines.
package session

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"math"
	"slices"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

const (
	sessionVersion = 1
	headerSize     = 1 + 8                       // bytes before the first position
	maxSeen        = 3 + 2*binary.MaxVarintLen64 // bytes of a position
	maxLeaders     = 3                           // positions of a group, each under another leader
	// maxToken is the maximum size of a token in bytes, before base64.
	maxToken = headerSize + MaxGroups*maxLeaders*maxSeen
)

// MaxGroups is the maximum number of groups of a cluster.
const MaxGroups = 256

// Cluster identifies the cluster to which a token belongs.
type Cluster struct {
	Tag    uint64 // see datadir.Identity.Tag
	Groups uint32 // number of groups; 0 = not known yet
}

// has reports whether the cluster can have a group with this id.
func (c Cluster) has(group uint64) bool {
	if c.Groups == 0 {
		return group < MaxGroups
	}
	return group < uint64(c.Groups)
}

// Seen is the log position that a session has seen in one group. If Committed is true, the position comes from a read
// or a strong write and cannot be lost.
type Seen struct {
	Group     uint32
	Pos       raftlog.Position
	Committed bool
}

// Session has the positions of a decoded token, in ascending order of group and term. No position covers another one. A
// nil Session has no positions.
type Session []Seen

// Parse decodes a token. The result foreign is true if the token belongs to another cluster, or names a group that the
// cluster does not have. The session is then empty. Parse returns fault.Invalid for a malformed token.
func Parse(token string, cluster Cluster) (s Session, foreign bool, err error) {
	if token == "" {
		return nil, false, nil
	}
	if len(token) > base64.RawURLEncoding.EncodedLen(maxToken) {
		return nil, false, malformed("it is too long")
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) < headerSize || b[0] != sessionVersion {
		return nil, false, malformed("it is not a session token of this version")
	}
	foreign = binary.BigEndian.Uint64(b[1:]) != cluster.Tag
	for b = b[headerSize:]; len(b) > 0; {
		var v [3]uint64
		for i := range v {
			x, n := binary.Uvarint(b)
			if n <= 0 {
				return nil, false, malformed("it is truncated")
			}
			v[i], b = x, b[n:]
		}
		if v[0] > math.MaxUint32 {
			return nil, false, malformed("it has a group that no cluster has")
		}
		n := Seen{Group: uint32(v[0]), Pos: raftlog.Position{Term: v[1], Index: v[2] >> 1}, Committed: v[2]&1 == 1}
		if len(s) > 0 && order(s[len(s)-1], n) >= 0 {
			return nil, false, malformed("its positions are out of order")
		}
		foreign = foreign || !cluster.has(v[0])
		if len(s) >= maxLeaders && s[len(s)-maxLeaders].Group == n.Group {
			return nil, false, malformed("it has too many positions of a group")
		}
		s = append(s, n)
	}
	if foreign {
		return nil, true, nil
	}
	return s, false, nil
}

func malformed(why string) error {
	return &fault.Error{Code: fault.Invalid, Op: "raftfsm.session", Msg: "the session token cannot be read: " + why,
		Hint: "send the Quorate-Session header of an earlier answer unchanged, or none"}
}

func order(a, b Seen) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Pos.Term, b.Pos.Term))
}

// Of returns the positions that the session has seen in the group g, in ascending order of their terms. The result
// shares memory with s.
func (s Session) Of(g uint32) Session {
	from := slices.IndexFunc(s, func(e Seen) bool { return e.Group >= g })
	if from < 0 {
		return nil
	}
	end := from
	for end < len(s) && s[end].Group == g {
		end++
	}
	return s[from:end:end]
}

// Covers reports whether a read that has waited for the position s need not wait for n. Both must be positions of the
// same group. s covers n if the index of s is not smaller, and one of these conditions is true:
//
//   - Both positions are of the same leader.
//   - n is committed. An uncommitted position of another leader may have been lost.
//
// Covers is also correct if s itself was lost. The read then reports the loss, and has waited for all entries up to the
// index of s that were not lost.
func (s Seen) Covers(n Seen) bool {
	return s.Pos.Index >= n.Pos.Index && (n.Committed || s.Pos.Term == n.Pos.Term)
}

// Replaces reports whether a session should contain the position n instead of s. If neither position covers the other,
// Replaces returns false, and the session needs both.
func (n Seen) Replaces(s Seen) bool { return n.Covers(s) && !(s.Committed && s.Covers(n)) }

// Holds reports whether the session already has n, or a position that covers n.
func (s Session) Holds(n Seen) bool {
	return slices.ContainsFunc(s.Of(n.Group), func(e Seen) bool { return e == n || e.Covers(n) && !n.Replaces(e) })
}

// With returns the session after n is added and the positions that n replaces are removed. If s already contains or
// covers n, the result is s. If the group has more than maxLeaders positions, the one of the earliest leader is
// dropped, and a loss of the write at that position is not reported any more. With does not change s.
func (s Session) With(n Seen) Session {
	if s.Holds(n) {
		return s
	}
	out := make(Session, 0, len(s)+1)
	for _, e := range s {
		if e.Group != n.Group || !n.Replaces(e) {
			out = append(out, e)
		}
	}
	at, _ := slices.BinarySearchFunc(out, n, order)
	out = slices.Insert(out, at, n)
	if len(out.Of(n.Group)) > maxLeaders {
		first := slices.IndexFunc(out, func(e Seen) bool { return e.Group == n.Group })
		out = slices.Delete(out, first, first+1)
	}
	return out
}

// Settled returns the positions of a request that its answer has settled. s is the session of the request, and after is
// the session of the answer. An uncommitted position is settled if the answer's session has only one position of the
// group, which is committed and does not cover the uncommitted position. The answer then contains the write at the
// position, or has reported that the write was lost. The answer to a write settles nothing. Its session may lack a
// position that With has dropped, but the session then has several positions of the group.
func (s Session) Settled(after Session) (settled Session) {
	for _, n := range s {
		left := after.Of(n.Group)
		if !n.Committed && len(left) == 1 && left[0].Committed && !left.Holds(n) {
			settled = append(settled, n)
		}
	}
	return settled
}

// Unsettled returns the session without the positions that an answer has settled. settled is the result of Settled, and
// after is the session of the answer.
//
// An uncommitted position is also removed if a settled position covers it and the answer's session has a committed
// position with the same or a greater index. The second condition is needed because a client may have invented a
// settled position above the end of the log.
func (s Session) Unsettled(settled, after Session) Session {
	if len(settled) == 0 {
		return s
	}
	return slices.DeleteFunc(slices.Clone(s), func(n Seen) bool {
		covers := func(e Seen) bool { return e == n || !n.Committed && e.Covers(n) && after.reaches(n) }
		return slices.ContainsFunc(settled.Of(n.Group), covers)
	})
}

// reaches reports whether the session has a committed position of the group of n with the same or a greater index.
func (s Session) reaches(n Seen) bool {
	return slices.ContainsFunc(s.Of(n.Group), func(e Seen) bool { return e.Committed && e.Pos.Index >= n.Pos.Index })
}

// Shared returns the part of the session to send to a client or to another application. sent is the session that this
// receiver has sent, or nil.
//
// Shared omits an uncommitted position if a position of a later leader makes it unnecessary. A read that waits for the
// later position also sees the uncommitted write, unless that write was lost. Shared keeps a position that the receiver
// may know, so that the receiver learns of a loss. Other receivers need no report. If Shared kept the position for
// them, too, each message would cause the same report again.
//
// The receiver may know the position in two cases:
//
//   - It has sent an uncommitted position of the same leader.
//   - It has sent positions of the group, but none of a later leader. It may not have received all answers yet.
func (s Session) Shared(sent Session) Session {
	return slices.DeleteFunc(slices.Clone(s), func(n Seen) bool {
		return !n.Committed && slices.ContainsFunc(s.Of(n.Group), n.isNeedlessWith) && !sent.mayKnow(n)
	})
}

// isNeedlessWith reports whether a session that has e, a position of a later leader, does not need the uncommitted
// position n. A read that waits for e also sees the write at n, unless that write was lost.
//
// If e is uncommitted and has a smaller index than n, the later leader did not have the write at n in its log. Then n
// or e is lost. If e is lost, the read reports this loss, and waits for everything that is committed.
func (n Seen) isNeedlessWith(e Seen) bool {
	return e.Pos.Term > n.Pos.Term && (e.Pos.Index >= n.Pos.Index || !e.Committed)
}

// mayKnow reports whether a receiver that has sent the session may know the uncommitted position n.
func (s Session) mayKnow(n Seen) bool {
	theirs := s.Of(n.Group)
	if len(theirs) == 0 {
		return false
	}
	same := func(e Seen) bool { return e.Pos.Term == n.Pos.Term && !e.Committed }
	return theirs[len(theirs)-1].Pos.Term <= n.Pos.Term || slices.ContainsFunc(theirs, same)
}

// hasSeveral reports whether the session has several positions of a group.
func (s Session) hasSeveral() bool {
	for i := 1; i < len(s); i++ {
		if s[i].Group == s[i-1].Group {
			return true
		}
	}
	return false
}

// Token encodes the session for the cluster with this tag.
func (s Session) Token(tag uint64) string {
	var buf [64]byte
	b := binary.BigEndian.AppendUint64(append(buf[:0], sessionVersion), tag)
	for _, e := range s {
		b = binary.AppendUvarint(b, uint64(e.Group))
		b = binary.AppendUvarint(b, e.Pos.Term)
		i := e.Pos.Index << 1
		if e.Committed {
			i |= 1
		}
		b = binary.AppendUvarint(b, i)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}
