package raftfsm

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/session"
)

// MergeSessions returns a session token that contains the positions in the tokens a and b, without those that others
// cover. An empty token contains no position. MergeSessions returns false if a token cannot be decoded or belongs to
// another cluster.
func (h *Host) MergeSessions(a, b string) (string, bool) {
	return h.router.tokens.Merge(a, b, h.router.cluster())
}

// AnswerSession adds to token the positions that a store of this node has returned in answerToken. requestToken is
// the token in the request. A position that is in both of these tokens comes from the client, who may have invented
// it. AnswerSession adds such a position only if this node knows that it exists. It returns false if token or
// answerToken cannot be decoded or belongs to another cluster.
func (h *Host) AnswerSession(token, requestToken, answerToken string) (string, bool) {
	request, _, err := h.router.tokens.Parse(requestToken, h.router.cluster())
	if err != nil {
		request = nil
	}
	return h.router.tokens.MergeIf(token, answerToken, h.router.cluster(), func(n session.Seen) bool {
		return !slices.Contains(request, n) || h.router.knows(n)
	})
}

// VerifySession adds to the token current those positions of the token claimed that exist in this cluster. claimed
// comes from a client, who may have invented it. For a position that this node does not know, VerifySession asks the
// leader of the group. VerifySession ignores a token that cannot be decoded or belongs to another cluster. It returns
// fault.Unavailable if a leader did not answer in time, or if this server was removed.
func (h *Host) VerifySession(ctx context.Context, current, claimed string) (string, error) {
	cluster := h.router.cluster()
	claims, foreign, err := h.router.tokens.Parse(claimed, cluster)
	if err != nil || foreign || current == claimed {
		return current, nil
	}
	have, _, err := h.router.tokens.Parse(current, cluster)
	if err != nil {
		have = nil
	}
	ctx, cancel := context.WithTimeout(ctx, sessionPatience)
	defer cancel()
	var verified session.Session
	for _, n := range claims {
		if have.Holds(n) {
			continue
		}
		n, exists, err := h.router.verify(ctx, n)
		if err != nil {
			return "", err
		}
		if exists {
			verified = verified.With(n)
		}
	}
	if len(verified) == 0 {
		return current, nil
	}
	token := verified.Token(cluster.Tag)
	if merged, ok := h.router.tokens.Merge(current, token, cluster); ok {
		return merged, nil
	}
	return token, nil
}

// cluster returns the cluster to which session tokens of this node belong.
func (r *router) cluster() session.Cluster {
	return session.Cluster{Tag: r.node.tag.Load(), Groups: r.replica.partitions()}
}

// noteSeen records that a leader or a replica has answered with the position n.
func (r *router) noteSeen(n session.Seen) {
	g := r.group(n.Group)
	raise(&g.term, n.Pos.Term)
	if n.Committed {
		raise(&g.seen, n.Pos.Index)
	}
}

// raise sets v to n, unless v is greater.
func raise(v *atomic.Uint64, n uint64) {
	for {
		have := v.Load()
		if n <= have || v.CompareAndSwap(have, n) {
			return
		}
	}
}

// knows reports whether this node knows that the position n exists.
func (r *router) knows(n session.Seen) bool {
	if n.Group >= r.replica.partitions() {
		return false
	}
	return n.Committed && n.Pos.Index <= r.group(n.Group).seen.Load() || r.replica.holds(n)
}

// verify reports whether the position n exists. It also returns a position that covers n. This position is committed,
// unless the local log contains n.
func (r *router) verify(ctx context.Context, n session.Seen) (covers session.Seen, exists bool, err error) {
	if r.knows(n) {
		return n, true, nil
	}
	if err := r.node.allowed(); err != nil { // the node may have no groups
		return n, false, err
	}
	groups, err := r.replica.waitPartitions(ctx)
	if err != nil || n.Group >= groups {
		return n, false, err
	}
	for {
		ri, held, err := r.replica.readIndex(ctx, n.Group, n.Pos)
		if err == nil {
			covers = session.Seen{Group: n.Group, Committed: true, Pos: ri.Position}
			r.noteSeen(covers)
			covers.Pos.Index = n.Pos.Index
			// If the leader still holds an uncommitted position, the read index is not below it.
			return covers, n.Pos.Index <= ri.Index && (n.Committed || held != group.Lost), nil
		}
		if !r.retry.again(ctx, r.replica, n.Group, err) {
			return n, false, &fault.Error{Code: fault.Unavailable, Op: "raftfsm.session", Err: err,
				Msg:  "the session of the request cannot be verified in group " + utoa(n.Group),
				Hint: "repeat the request once the group has a leader, or send it without Quorate-Session"}
		}
	}
}
