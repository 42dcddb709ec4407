package raftfsm

import (
	"context"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/session"
)

// MergeSessions returns a session token that contains, for each group, the newer of the positions in the tokens a
// and b. An empty token contains no position. MergeSessions returns false if a token cannot be decoded or belongs to
// another cluster.
func (h *Host) MergeSessions(a, b string) (string, bool) {
	return h.router.tokens.Merge(a, b, h.router.cluster())
}

// AnswerSession merges into the token own what an answer of a store of this node has shown. sent is the token in the
// request and got is the one in the answer. Positions that are in both come from the client, who may have invented
// them. Of these, AnswerSession adds only those that this node knows to exist. It returns false if own or got cannot
// be decoded or belongs to another cluster.
func (h *Host) AnswerSession(own, sent, got string) (string, bool) {
	request, _, err := h.router.tokens.Parse(sent, h.router.cluster())
	if err != nil {
		request = nil
	}
	return h.router.tokens.MergeIf(own, got, h.router.cluster(), func(n session.Seen) bool {
		e, both := request.Of(n.Group)
		return !both || e != n || h.router.knows(n)
	})
}

// VerifySession merges into the token own the positions of the token given that exist in this cluster. given comes
// from a client, who may have invented it. For a position that this node does not know, VerifySession asks the leader
// of the group. VerifySession ignores a token that cannot be decoded or belongs to another cluster. It returns
// fault.Unavailable if a leader did not answer in time.
func (h *Host) VerifySession(ctx context.Context, own, given string) (string, error) {
	cluster := h.router.cluster()
	claims, foreign, err := h.router.tokens.Parse(given, cluster)
	if err != nil || foreign || own == given {
		return own, nil
	}
	have, _, err := h.router.tokens.Parse(own, cluster)
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
		return own, nil
	}
	token := verified.Token(cluster.Tag)
	if merged, ok := h.router.tokens.Merge(own, token, cluster); ok {
		return merged, nil
	}
	return token, nil
}

// cluster returns the cluster to which session tokens of this node belong.
func (r *router) cluster() session.Cluster {
	return session.Cluster{Tag: r.node.tag.Load(), Groups: r.replica.partitions()}
}

// noteSeen records that the position n exists.
func (r *router) noteSeen(n session.Seen) {
	if !n.Committed {
		return
	}
	seen := &r.group(n.Group).seen
	for {
		have := seen.Load()
		if n.Pos.Index <= have || seen.CompareAndSwap(have, n.Pos.Index) {
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

// verify reports whether the position n exists. The returned position covers n, and is committed unless the local log
// contains n.
func (r *router) verify(ctx context.Context, n session.Seen) (covers session.Seen, exists bool, err error) {
	if r.knows(n) {
		return n, true, nil
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
