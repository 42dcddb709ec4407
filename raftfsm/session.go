package raftfsm

import (
	"encoding/base64"
	"encoding/binary"
	"sort"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// A session token records how far an application has seen each group. It contains the cluster, and a position
// (term and index) for each group. A read with a token never returns data from before these positions, unless the
// answer is marked stale.
//
// The format is base64url without padding of: version 1 (1 byte), cluster (8 bytes), and for each group in
// ascending order its id, term and index<<1|committed as uvarints.
const (
	sessionVersion = 1
	maxSession     = 16 << 10
)

// seen is the position of a session in one group. If committed is true, the position cannot be lost, because it
// comes from a read or a strong write.
type seen struct {
	group     uint32
	pos       raftlog.Position
	committed bool
}

// session is a decoded token; nil is the empty one.
type session []seen

// parseSession decodes a token. If the token belongs to another cluster, it returns an empty session, and foreign
// is true.
func parseSession(token string, cluster uint64) (s session, foreign bool, err error) {
	if token == "" {
		return nil, false, nil
	}
	if len(token) > maxSession {
		return nil, false, badSession("it is too long")
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) < 9 || b[0] != sessionVersion {
		return nil, false, badSession("it is not a session token of this version")
	}
	foreign = binary.BigEndian.Uint64(b[1:]) != cluster
	for b = b[9:]; len(b) > 0; {
		var v [3]uint64
		for i := range v {
			x, n := binary.Uvarint(b)
			if n <= 0 {
				return nil, false, badSession("it is truncated")
			}
			v[i], b = x, b[n:]
		}
		if v[0] > 1<<16 || (len(s) > 0 && uint32(v[0]) <= s[len(s)-1].group) {
			return nil, false, badSession("its groups are out of order")
		}
		s = append(s, seen{group: uint32(v[0]), pos: raftlog.Position{Term: v[1], Index: v[2] >> 1},
			committed: v[2]&1 == 1})
	}
	if foreign {
		return nil, true, nil
	}
	return s, false, nil
}

func badSession(why string) error {
	return &fault.Error{Code: fault.Invalid, Op: "raftfsm.session", Msg: "the session token cannot be read: " + why,
		Hint: "send the Quorate-Session header of an earlier answer unchanged, or none"}
}

// of returns what the session has seen of a group.
func (s session) of(g uint32) (seen, bool) {
	for i := range s {
		if s[i].group == g {
			return s[i], true
		}
	}
	return seen{}, false
}

// before reports whether n, which was seen after s, replaces s. If the indexes differ, n replaces s if n has the
// greater index, whatever the terms are. If the indexes are equal, n replaces s unless s is committed and n is not.
func (s seen) before(n seen) bool {
	if n.pos.Index == s.pos.Index {
		return n.committed || !s.committed
	}
	return n.pos.Index > s.pos.Index
}

// holds reports whether adding n would not change the session.
func (s session) holds(n seen) bool {
	e, ok := s.of(n.group)
	return ok && (e == n || !e.before(n))
}

// with returns the session with n added. The receiver is not changed.
func (s session) with(n seen) session {
	out := make(session, 0, len(s)+1)
	placed := false
	for _, e := range s {
		if e.group == n.group {
			placed = true
			if e.before(n) {
				e = n
			}
		}
		out = append(out, e)
	}
	if !placed {
		out = append(out, n)
		sort.Slice(out, func(i, j int) bool { return out[i].group < out[j].group })
	}
	return out
}

// without returns the session without its position of a group.
func (s session) without(g uint32) session {
	out := make(session, 0, len(s))
	for _, e := range s {
		if e.group != g {
			out = append(out, e)
		}
	}
	return out
}

// token encodes the session.
func (s session) token(cluster uint64) string {
	var buf [64]byte
	b := binary.BigEndian.AppendUint64(append(buf[:0], sessionVersion), cluster)
	for _, e := range s {
		b = binary.AppendUvarint(b, uint64(e.group))
		b = binary.AppendUvarint(b, e.pos.Term)
		i := e.pos.Index << 1
		if e.committed {
			i |= 1
		}
		b = binary.AppendUvarint(b, i)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}
