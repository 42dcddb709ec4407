package group

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/integrity"
	"github.com/quorate/quorate/raftfsm/transport"
)

// simNet connects the servers of a simulation. Every message takes virtual time. A few take so long that the
// sender has given up when they arrive. A message sent over a cut link vanishes, and its sender waits until its
// time-out.
type simNet struct {
	work  sync.WaitGroup // messages in flight
	calm  bool           // no message is late
	harsh bool           // many messages are late, and some arrive twice

	mu    sync.Mutex
	rnd   *rand.Rand
	cut   map[link]bool
	wires map[raft.ServerID]*simWire // of running servers
}

var errRefused = errors.New("no server is connected there")

// after waits for d of virtual time.
func after(d time.Duration) { <-time.After(d) }

// delay returns how long a message takes. The parameter bulk is true for entries and snapshots, and first for the
// entries from 1 on, which a new server gets.
func (n *simNet) delay(bulk, first bool) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.harsh && first && n.rnd.IntN(5) != 0 {
		return time.Duration(300+n.rnd.IntN(8000)) * time.Millisecond
	}
	if n.rnd.IntN(60) == 0 && !n.calm {
		return time.Duration(50+n.rnd.IntN(900)) * time.Millisecond
	}
	if n.harsh && bulk && n.rnd.IntN(5) == 0 {
		return time.Duration(300+n.rnd.IntN(1200)) * time.Millisecond
	}
	return time.Duration(100+n.rnd.IntN(2500)) * time.Microsecond
}

// copies returns how many copies of a message are sent.
func (n *simNet) copies(bulk bool) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.harsh && bulk && n.rnd.IntN(8) == 0 {
		return 2
	}
	return 1
}

func (n *simNet) set(l link, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[l] = cut
}

func (n *simNet) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
}

// whole reports whether messages pass from one server to another.
func (n *simNet) whole(from, to raft.ServerID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.cut[link{from, to}]
}

// join connects a server, in place of its earlier incarnation.
func (n *simNet) join(id raft.ServerID) *simWire {
	w := &simWire{net: n, id: id, consumer: make(chan raft.RPC), down: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wires[id] = w
	return w
}

// leave disconnects an incarnation of a server at once.
func (n *simNet) leave(w *simWire) {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(w.down)
	if n.wires[w.id] == w {
		delete(n.wires, w.id)
	}
}

func (n *simNet) wire(id raft.ServerID) *simWire {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.wires[id]
}

// simWire is the transport of one incarnation of a server.
type simWire struct {
	net      *simNet
	id       raft.ServerID
	consumer chan raft.RPC
	down     chan struct{} // closed when the server has crashed or stopped

	mu        sync.Mutex
	heartbeat func(raft.RPC)
	group     *Group // set once the group is open
}

var (
	_ raft.Transport     = (*simWire)(nil)
	_ raft.WithPreVote   = (*simWire)(nil)
	_ Confirmer          = (*simWire)(nil)
	_ integrity.Replicas = (*simWire)(nil)
)

const simTimeout = 400 * time.Millisecond // time limit of a request

func (w *simWire) dead() bool {
	select {
	case <-w.down:
		return true
	default:
		return false
	}
}

func (w *simWire) opened(g *Group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.group = g
}

func (w *simWire) open() *Group {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.group
}

func (w *simWire) handler() func(raft.RPC) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heartbeat
}

// reply is the response to a sender.
type reply[T any] struct {
	value T
	err   error
}

// exchange sends a request and waits for the response, at most for limit. The function handle runs at the receiver.
// bulk and first are those of simNet.delay.
func exchange[T any](w *simWire, to raft.ServerID, limit time.Duration, bulk, first bool,
	handle func(*simWire) (T, error)) (T, error) {
	var none T
	if w.dead() {
		return none, errCut
	}
	copies := w.net.copies(bulk)
	back := make(chan reply[T], copies)
	send := func() {
		after(w.net.delay(bulk, first))
		if w.dead() && !w.net.harsh || !w.net.whole(w.id, to) {
			return
		}
		target := w.net.wire(to)
		if target == nil {
			back <- reply[T]{none, errRefused}
			return
		}
		value, err := handle(target)
		after(w.net.delay(false, false))
		if !target.dead() && w.net.whole(to, w.id) {
			back <- reply[T]{value, err}
		}
	}
	for range copies {
		w.net.work.Go(send)
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case r := <-back:
		return r.value, r.err
	case <-t.C:
		return none, errCut
	case <-w.down:
		return none, errCut
	}
}

// rpc is an exchange with the raft instance of the other server.
func rpc[T any](w *simWire, to raft.ServerAddress, limit time.Duration, command any, data func() io.Reader,
	resp *T) error {
	a, appends := command.(*raft.AppendEntriesRequest)
	bulk := data != nil || appends && len(a.Entries) > 0
	first := appends && len(a.Entries) > 0 && a.PrevLogEntry == 0
	got, err := exchange(w, raft.ServerID(to), limit, bulk, first, func(target *simWire) (*T, error) {
		answer := make(chan raft.RPCResponse, 1)
		req := raft.RPC{Command: command, RespChan: answer}
		if data != nil {
			req.Reader = data()
		}
		wait := limit
		if w.net.harsh {
			wait = time.Minute // a request waits at the receiver, also after its sender has given up
		}
		t := time.NewTimer(wait)
		defer t.Stop()
		if appends && transport.IsHeartbeat(a) && target.handler() != nil {
			go target.handler()(req)
		} else {
			select {
			case target.consumer <- req:
			case <-target.down:
				return nil, errCut
			case <-t.C:
				return nil, errCut
			}
		}
		select {
		case a := <-answer:
			if a.Error != nil {
				return nil, a.Error
			}
			return a.Response.(*T), nil
		case <-target.down:
			return nil, errCut
		case <-t.C:
			return nil, errCut
		}
	})
	if err == nil {
		*resp = *got
	}
	return err
}

func (w *simWire) Consumer() <-chan raft.RPC     { return w.consumer }
func (w *simWire) LocalAddr() raft.ServerAddress { return raft.ServerAddress(w.id) }

func (w *simWire) SetHeartbeatHandler(h func(raft.RPC)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heartbeat = h
}

func (w *simWire) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func (w *simWire) AppendEntries(_ raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	req := *args // a copy, because the sender reuses args
	req.Entries = slices.Clone(args.Entries)
	for i, l := range req.Entries {
		req.Entries[i] = copyEntry(l)
	}
	return rpc(w, to, simTimeout, &req, nil, resp)
}

func (w *simWire) RequestVote(_ raft.ServerID, to raft.ServerAddress, args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse) error {
	return rpc(w, to, simTimeout, args, nil, resp)
}

func (w *simWire) RequestPreVote(_ raft.ServerID, to raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse) error {
	return rpc(w, to, simTimeout, args, nil, resp)
}

func (w *simWire) TimeoutNow(_ raft.ServerID, to raft.ServerAddress, args *raft.TimeoutNowRequest,
	resp *raft.TimeoutNowResponse) error {
	return rpc(w, to, simTimeout, args, nil, resp)
}

func (w *simWire) InstallSnapshot(_ raft.ServerID, to raft.ServerAddress, args *raft.InstallSnapshotRequest,
	resp *raft.InstallSnapshotResponse, data io.Reader) error {
	stream := func() io.Reader { return &simStream{w, raft.ServerID(to), data} }
	if w.net.harsh { // a connection can hold the whole snapshot
		all, err := io.ReadAll(data)
		if err != nil {
			return err
		}
		stream = func() io.Reader { return bytes.NewReader(all) }
	}
	return rpc(w, to, 10*simTimeout, args, stream, resp)
}

func (w *simWire) EncodePeer(_ raft.ServerID, a raft.ServerAddress) []byte { return []byte(a) }
func (w *simWire) DecodePeer(b []byte) raft.ServerAddress                  { return raft.ServerAddress(b) }

// simStream fails when the link is cut or the sender crashes.
type simStream struct {
	from *simWire
	to   raft.ServerID
	r    io.Reader
}

func (s *simStream) Read(p []byte) (int, error) {
	if s.from.dead() || !s.from.net.whole(s.from.id, s.to) {
		return 0, errCut
	}
	return s.r.Read(p)
}

// query is an exchange with the group of the other server.
func query[T any](w *simWire, to raft.ServerID, question func(*Group) (T, error)) (T, error) {
	return exchange(w, to, simTimeout, false, false, func(target *simWire) (T, error) {
		if g := target.open(); g != nil {
			return question(g)
		}
		var none T
		return none, errRefused
	})
}

func (w *simWire) ConfirmTerm(_ context.Context, server raft.Server, term uint64) error {
	_, err := query(w, server.ID, func(g *Group) (any, error) { return nil, g.AnswerConfirm(term) })
	return err
}

func (w *simWire) Compare(_ context.Context, server raft.Server, index uint64) (integrity.Report, error) {
	return query(w, server.ID, func(g *Group) (integrity.Report, error) { return g.AnswerCompare(index), nil })
}

func (w *simWire) AskState(_ context.Context, server raft.Server, ask integrity.StateRequest) error {
	_, err := query(w, server.ID, func(g *Group) (any, error) { return nil, g.AnswerState(ask) })
	return err
}
