package raftfsm

import (
	"context"
	"sync/atomic"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/session"
)

// MergeSessions returns a session token that contains the positions in the tokens a and b. It leaves out positions that
// other positions cover. An empty token contains no position. MergeSessions returns false if a token cannot be decoded
// or belongs to another cluster.
func (h *Host) MergeSessions(a, b string) (string, bool) {
	return h.router.tokens.Merge(a, b, h.router.cluster())
}

// AnswerSession returns the token of a session after the answer to a request. The parameter token is the token before
// the answer, requestToken is the token in the request, and answerToken is the token that a store of this node has
// returned.
//
// AnswerSession removes the uncommitted positions that the answer has settled: the answer reflects their writes or
// reports their loss. It adds the positions of answerToken. The client may have invented the positions in requestToken.
// AnswerSession therefore adds a position that is in both tokens only if this node knows that the position exists.
//
// AnswerSession returns false if token or answerToken cannot be decoded or belongs to another cluster.
func (h *Host) AnswerSession(token, requestToken, answerToken string) (string, bool) {
	return h.router.tokens.Answer(token, requestToken, answerToken, h.router.cluster(), h.router.confirm)
}

// ShareSession returns the part of a token to send to a client or to another application. sentToken is the token that
// the receiver has sent, or empty.
//
// ShareSession omits an uncommitted position if a later position is enough: a read that waits for the later one also
// sees the earlier write, unless this write was lost. ShareSession keeps positions that the receiver may already know,
// so that the receiver learns of a loss.
func (h *Host) ShareSession(token, sentToken string) string {
	return h.router.tokens.Shared(token, sentToken, h.router.cluster())
}

// VerifySession adds the positions in a client's token (claimed) to another token (current), and returns the result.
// The client may have invented positions, so VerifySession adds only those that exist in this cluster. If this node
// does not know a position, VerifySession sends a request to the leader of the group. It ignores a token that cannot be
// decoded or belongs to another cluster.
//
// VerifySession returns fault.Unavailable if a leader does not answer in time, or if this server was removed.
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

// confirm reports whether this node knows that the position n exists, and returns n. If n is committed, a client may
// have invented its term. In that case, the returned position has a term that no entry up to n exceeds. A lower term
// could hide the loss of an earlier uncommitted write.
func (r *router) confirm(n session.Seen) (session.Seen, bool) {
	if n.Group >= r.replica.partitions() {
		return n, false
	}
	if g := r.group(n.Group); n.Committed && n.Pos.Index <= g.seen.Load() {
		n.Pos.Term = g.term.Load() // noteSeen raises it before seen
		return n, true
	}
	return r.replica.confirm(n)
}

// verify reports whether the position n exists. It also returns a position that covers n. This is n itself if n is
// uncommitted and in the local log. Otherwise the returned position is committed.
//
// If n is uncommitted and its write was lost, exists is true as well. The returned position then covers everything that
// n covers and that was not lost.
func (r *router) verify(ctx context.Context, n session.Seen) (covers session.Seen, exists bool, err error) {
	if covers, exists = r.confirm(n); exists {
		return covers, true, nil
	}
	if err := r.node.allowed(); err != nil { // the node may have no groups
		return n, false, err
	}
	groups, err := r.replica.waitPartitions(ctx)
	if err != nil || n.Group >= groups {
		return n, false, err
	}
	for {
		ri, _, err := r.replica.readIndex(ctx, n.Group, n.Pos)
		if err == nil {
			covers = session.Seen{Group: n.Group, Committed: true, Pos: ri.Position}
			r.noteSeen(covers)
			// If the leader still holds an uncommitted position, the read index is not below it.
			covers.Pos.Index = min(n.Pos.Index, ri.Index)
			return covers, n.Pos.Index <= ri.Index || !n.Committed, nil
		}
		if !r.retry.again(ctx, r.replica, n.Group, err) {
			return n, false, &fault.Error{Code: fault.Unavailable, Op: "raftfsm.session", Err: err,
				Msg:  "the session of the request cannot be verified in group " + utoa(n.Group),
				Hint: "repeat the request once the group has a leader, or send it without Quorate-Session"}
		}
	}
}
