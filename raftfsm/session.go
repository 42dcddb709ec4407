package raftfsm

import (
	"encoding/base64"
	"encoding/binary"
	"sort"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
)

// A session token says how far an application has seen each group: cluster, and group ->
// (term, index). A read that carries it never answers from before that point, unless the
// answer is marked stale.
//
// Form, base64url without padding: version 1 (1 byte), cluster (8 bytes), then for each
// group in ascending order: id, term, index<<1|committed as uvarints.
const (
	sessionVersion = 1
	maxSession     = 16 << 10
)

// seen is one entry of a session. Committed says that the position can not be lost: it
// belongs to a read or to a strong write.
type seen struct {
	group     uint32
	pos       group.Position
	committed bool
}

// session is a decoded token; nil is the empty one.
type session []seen

// tag is the short form of cluster and epoch that tokens carry: after a rescue a token of
// before may name what is lost.
func (id *Identity) tag() uint64 {
	if id.Epoch == 0 {
		return xxhash.Sum64String(id.Cluster)
	}
	return xxhash.Sum64String(id.Cluster + "/" + strconv.FormatUint(id.Epoch, 10))
}

// parseSession decodes a token. A token of another cluster is an empty session that is
// foreign: whoever carries it may have seen anything.
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
				return nil, false, badSession("it is cut off")
			}
			v[i], b = x, b[n:]
		}
		if v[0] > 1<<16 || (len(s) > 0 && uint32(v[0]) <= s[len(s)-1].group) {
			return nil, false, badSession("its groups are out of order")
		}
		s = append(s, seen{group: uint32(v[0]), pos: group.Position{Term: v[1], Index: v[2] >> 1}, committed: v[2]&1 == 1})
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

// before reports whether n, seen later, replaces s. Of two positions that cannot be lost
// the greater index holds more, whatever the terms. One that can be lost counts until
// something at or above it is seen that cannot; and a later one of the kind replaces it.
func (s seen) before(n seen) bool {
	if n.pos.Index == s.pos.Index {
		return n.committed || !s.committed
	}
	return n.pos.Index > s.pos.Index
}

// holds reports whether the session would not change by n.
func (s session) holds(n seen) bool {
	e, ok := s.of(n.group)
	return ok && (e == n || !e.before(n))
}

// with returns the session advanced by what was just seen. The receiver is not changed.
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

// without returns the session without what it has seen of a group.
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

// MergeSessions returns a token that has seen what either of two tokens of this cluster has
// seen; empty ones have seen nothing. It is false if one of them cannot be read, or belongs
// to another cluster.
func (h *Host) MergeSessions(a, b string) (string, bool) { return h.tokens.merge(a, b, h.tag.Load()) }
