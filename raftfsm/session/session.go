// Package session encodes session tokens, and caches the token that was used last. A token contains the id of the
// cluster and, for each group, the newest log position (term and index) that the application has seen. A read with a
// token never returns data from before these positions, unless the answer is marked as stale.
//
// A token is base64url without padding. The content is version 1 (1 byte) and the cluster (8 bytes), followed by
// three uvarints for each group in ascending order: its id, its term, and index<<1|committed.
//
// Tokens are not signed, so a client can invent positions. Parse accepts at most one position for each group of the
// cluster, and Cache.After never writes more. The caller must verify a position before other requests depend on it.
//
// The package owns the format of tokens. It has no goroutines.
package session

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"sort"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

const (
	sessionVersion = 1
	headerSize     = 1 + 8                          // bytes before the first position
	maxSeen        = 3 + 2*binary.MaxVarintLen64    // bytes of a position
	maxToken       = headerSize + MaxGroups*maxSeen // bytes of a token, before base64
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

// Session is a decoded token. A nil Session has no positions.
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
		if v[0] > math.MaxUint32 || (len(s) > 0 && uint32(v[0]) <= s[len(s)-1].Group) {
			return nil, false, malformed("its groups are out of order")
		}
		foreign = foreign || !cluster.has(v[0])
		s = append(s, Seen{Group: uint32(v[0]), Pos: raftlog.Position{Term: v[1], Index: v[2] >> 1},
			Committed: v[2]&1 == 1})
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

// Of returns the log position that the session has seen in the group g. It returns false if the session has no
// position of this group.
func (s Session) Of(g uint32) (Seen, bool) {
	for i := range s {
		if s[i].Group == g {
			return s[i], true
		}
	}
	return Seen{}, false
}

// Before reports whether position n should replace s. The position with the greater index is newer; the terms do not
// matter. With equal indexes, n replaces s unless s is committed and n is not.
func (s Seen) Before(n Seen) bool {
	if n.Pos.Index == s.Pos.Index {
		return n.Committed || !s.Committed
	}
	return n.Pos.Index > s.Pos.Index
}

// Holds reports whether the session already has n, or a position of the same group that n does not replace.
func (s Session) Holds(n Seen) bool {
	e, ok := s.Of(n.Group)
	return ok && (e == n || !e.Before(n))
}

// With returns a copy of the session with the position n added. If the session has a position of the same group, With
// keeps the one that Seen.Before prefers. The receiver is not changed.
func (s Session) With(n Seen) Session {
	out := make(Session, 0, len(s)+1)
	placed := false
	for _, e := range s {
		if e.Group == n.Group {
			placed = true
			if e.Before(n) {
				e = n
			}
		}
		out = append(out, e)
	}
	if !placed {
		out = append(out, n)
		sort.Slice(out, func(i, j int) bool { return out[i].Group < out[j].Group })
	}
	return out
}

// Without returns the session without its position of the group g.
func (s Session) Without(g uint32) Session {
	out := make(Session, 0, len(s))
	for _, e := range s {
		if e.Group != g {
			out = append(out, e)
		}
	}
	return out
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
