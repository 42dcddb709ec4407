package raftfsm

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/quorate/quorate/component/state"
)

// askRead sends q to a server.
func (s *sidecar) askRead(ctx context.Context, to string, gid uint32, ask asking, q *query,
	patience time.Duration) (given, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b := append(message(formFirst, gid), boolByte(q.strong), boolByte(ask.foreign))
	b = binary.AppendUvarint(b, uint64(max(ask.bound, 0))) //nolint:gosec // not negative
	b = q.append(appendOwn(appendSeen(b, ask.session), ask.own))
	sent := time.Now()
	out, err := s.peers.Call(ctx, to, MethodRead, b)
	s.metrics.forwarded(forwardRead, err)
	if err != nil {
		return given{}, err
	}
	f := newFrame(out)
	got := readGiven(f, gid)
	if got.age > 0 || got.level == state.SessionLevel && got.age == 0 {
		got.age += time.Since(sent) // add the time of the answer's transfer
	}
	got.served = servedReplica
	if to == string(s.leader(gid)) {
		got.served = servedLeader
	}
	return got, q.readFound(f)
}

// serveRead executes a read for a node without replicas.
func (s *server) serveRead(ctx context.Context, gid uint32, r *frame) ([]byte, error) {
	strong := r.Byte() == 1
	ask := asking{foreign: r.Byte() == 1}
	ask.bound = time.Duration(r.Uvarint()) //nolint:gosec // the sender sends no negative bound
	ask.session, ask.own = r.seen(gid), r.own(gid)
	q, err := readQuery(r)
	if err != nil {
		return nil, err
	}
	if q.strong = strong; q.kind == queryMany {
		q.maxBytes = maxAnswer
	}
	got, err := s.read(ctx, gid, ask, q)
	if err != nil {
		return nil, err
	}
	return q.appendFound(appendGiven(nil, &got)), nil
}

// levels returns the levels by their numbers in messages.
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
	b = append(b, boolByte(g.forgive), boolByte(g.ownDone))
	b = binary.AppendUvarint(b, uint64(max(g.age+1, 0))) //nolint:gosec // not negative; 0 = not known
	return appendString(appendSeen(b, &g.at), g.reason)
}

func readGiven(f *frame, gid uint32) given {
	var g given
	level := f.Byte()
	if int(level) >= len(levels()) {
		f.Bad = true
		return g
	}
	g.level = levels()[level]
	g.forgive, g.ownDone = f.Byte() == 1, f.Byte() == 1
	g.age = time.Duration(f.Uvarint()) - 1 //nolint:gosec // a duration was sent
	if at := f.seen(gid); at != nil {
		g.at = *at
	}
	g.reason = f.Text()
	return g
}
