package raftfsm

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/peercalls"
)

// firstTry is how long a read waits for each server in the first round (see readClient.round). It is short, so that a
// paused server delays a read only a little. The time doubles with each round.
const firstTry = 1500 * time.Millisecond

// readClient reads at other servers. It is safe for concurrent use.
type readClient struct {
	peers   peercalls.Peers
	metrics *Metrics
	leaders peercalls.Leaders
	failed  func(server string, err error) // called for each server that did not answer
}

// round sends q to the servers in targets, one after the other, until one answers. It returns the answer of a lagging
// replica only if no other server answers.
//
// A strong read tries only the first server. If this server fails, the caller must determine the leader again.
//
// If final is false, no server has answered, and the caller may try another round. err is then the last error, or nil
// if targets is empty.
func (c *readClient) round(ctx context.Context, gid uint32, ask asking, q *query, targets []string,
	patience time.Duration) (got given, final bool, err error) {
	var stale *given
	for _, to := range targets {
		got, err = c.read(ctx, to, gid, ask, q, patience)
		if err == nil && got.reason == staleBehind {
			kept := got
			stale = &kept // another replica may be further ahead
			continue
		}
		if err == nil || !readElsewhere(err) || ctx.Err() != nil {
			return got, true, err
		}
		c.failed(to, err)
		if q.strong {
			break
		}
	}
	if stale != nil {
		return *stale, true, nil // q holds the result of that answer
	}
	return given{}, false, err
}

// read sends q to the server with the id to, and stores the result in q.
func (c *readClient) read(ctx context.Context, to string, gid uint32, ask asking, q *query,
	patience time.Duration) (given, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b := peercalls.Message(gid)
	b = append(b, peercalls.BoolByte(q.strong), peercalls.BoolByte(ask.foreign))
	b = binary.AppendUvarint(b, uint64(max(ask.bound, 0))) //nolint:gosec // not negative
	b = q.append(peercalls.AppendOwn(peercalls.AppendSeen(b, ask.session), ask.own))
	sent := time.Now()
	out, err := c.peers.Call(ctx, to, peercalls.MethodRead, b)
	c.metrics.Forwarded(peercalls.ForwardRead, err)
	if err != nil {
		return given{}, err
	}
	f := peercalls.NewFrame(out)
	got := readGiven(f, gid)
	if got.age > 0 || got.level == state.SessionLevel && got.age == 0 {
		got.age += time.Since(sent) // add the time of the answer's transfer
	}
	got.served = servedReplica
	if to == string(c.leaders.Leader(gid)) {
		got.served = servedLeader
	}
	return got, q.readFound(f)
}

// readElsewhere reports whether another server may answer a read that failed with err.
func readElsewhere(err error) bool {
	switch fault.CodeOf(err) {
	case fault.NotLeader, fault.Unavailable, fault.Indeterminate, fault.Timeout, fault.Overloaded:
		return true
	}
	return false
}

func retryCause(err error) string {
	switch code := fault.CodeOf(err); code {
	case fault.NotLeader, fault.Indeterminate:
		return string(code)
	}
	return string(fault.Unavailable)
}

// serveRead executes a read for another node, which has no trusted replica. It reads only from the replica of this
// node and never forwards the read.
func (s *server) serveRead(ctx context.Context, gid uint32, r *peercalls.Frame) ([]byte, error) {
	strong := r.Byte() == 1
	ask := asking{foreign: r.Byte() == 1}
	ask.bound = time.Duration(r.Uvarint()) //nolint:gosec // the sender sends no negative bound
	ask.session, ask.own = r.Seen(gid), r.Own(gid)
	q, err := readQuery(r)
	if err != nil {
		return nil, err
	}
	if q.strong = strong; q.kind == queryMany {
		q.maxBytes = maxAnswer
	}
	got, _, err := s.readHere(ctx, gid, ask, q)
	if err != nil {
		return nil, err
	}
	return q.appendFound(appendGiven(nil, &got)), nil
}

// levels returns the levels of reads. The index of a level is its number in messages.
func levels() []state.Level {
	return []state.Level{state.Linearizable, state.SessionLevel, state.Bounded, state.Stale}
}

// appendGiven encodes how a read was answered.
func appendGiven(b []byte, g *given) []byte {
	for i, l := range levels() {
		if l == g.level {
			b = append(b, byte(i))
		}
	}
	b = append(b, peercalls.BoolByte(g.forgive), peercalls.BoolByte(g.ownDone))
	b = binary.AppendUvarint(b, uint64(max(g.age+1, 0))) //nolint:gosec // not negative; 0 = not known
	return lenprefix.Append(peercalls.AppendSeen(b, &g.at), g.reason)
}

func readGiven(f *peercalls.Frame, gid uint32) given {
	var g given
	level := f.Byte()
	if int(level) >= len(levels()) {
		f.Bad = true
		return g
	}
	g.level = levels()[level]
	g.forgive, g.ownDone = f.Byte() == 1, f.Byte() == 1
	g.age = time.Duration(f.Uvarint()) - 1 //nolint:gosec // a duration was sent
	if at := f.Seen(gid); at != nil {
		g.at = *at
	}
	g.reason = f.Text()
	return g
}
