package group

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
)

// A replica whose state is wrong keeps its log, its term and its vote, which are right, and
// gets another state: it asks a server that is not in doubt, and that server sends a
// checkpoint in raft's own snapshot stream. The request is one that no raft would take (term
// 0), so that it reaches only whoever waits for it. What arrives is verified as a whole,
// brought up to the entries that this server has applied from its own log, and takes the
// place of the wrong database in one rename of the manifest.
//
// Invariant: raft is never told. The new machine holds every command that raft has handed
// over, and may hold some that raft will hand over, which a machine skips.

// StateRequest asks for a copy of a server's state.
type StateRequest struct {
	To      raft.ServerID // who asks
	Applied uint64        // the state must hold every entry up to here
	Nonce   uint64        // names the transfer
}

const (
	stateMark = "state"

	// stateStart is how long a transfer that was promised may take to begin.
	stateStart = 30 * time.Second
)

// AnswerState takes a request for this server's state; it is sent from another goroutine, one
// at a time. Errors: unavailable, if this server's own state is in doubt or not as far.
func (g *Group) AnswerState(ask StateRequest) error {
	refuse := func(why string) error {
		return fault.New(fault.Unavailable, "group.AnswerState", "this server cannot give its state away: "+why)
	}
	switch {
	case g.Doubt() != nil:
		return refuse("it is in doubt itself")
	case g.Machine().Applied() < ask.Applied:
		return refuse("it has not applied as much")
	}
	select {
	case g.supply <- ask:
		return nil
	case <-g.stop:
		return errClosing()
	default:
		return refuse("it is sending it to somebody already")
	}
}

// supplyStates sends the state to those who asked.
func (g *Group) supplyStates() {
	defer g.wg.Done()
	for {
		select {
		case ask := <-g.supply:
			if err := g.send(ask); err != nil {
				g.opts.Logger.Warn("the state could not be sent to a server that needs it; it asks again", "group", g.opts.ID, "to", string(ask.To), "error", err)
			} else {
				g.opts.Logger.Info("the state was sent to a server that needed it", "group", g.opts.ID, "to", string(ask.To))
			}
		case <-g.stop:
			return
		}
	}
}

func (g *Group) send(ask StateRequest) error {
	c, err := g.disk.snaps.checkpointAt(g.disk.snaps.index(), ask.Applied)
	if err != nil {
		return err
	}
	r := c.reader()
	defer r.Close()
	if err := g.Trusted(); err != nil { // since it was asked
		return err
	}
	req := &raft.InstallSnapshotRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(g.opts.ServerID), Addr: []byte(g.opts.ServerID)},
		Leader:    binary.BigEndian.AppendUint64([]byte(stateMark), ask.Nonce), Size: c.size,
	}
	var resp raft.InstallSnapshotResponse
	err = g.guard.inner.InstallSnapshot(ask.To, raft.ServerAddress(ask.To), req, &resp, &untilClosed{r, g.stop})
	if err == nil && !resp.Success {
		err = errors.New("it was not taken")
	}
	return err
}

// untilClosed ends a transfer when the group closes.
type untilClosed struct {
	io.Reader
	stop <-chan struct{}
}

func (u *untilClosed) Read(p []byte) (int, error) {
	select {
	case <-u.stop:
		return 0, errClosing()
	default:
		return u.Reader.Read(p)
	}
}

// expected is the transfer that this server waits for.
type expected struct {
	mu    sync.Mutex
	nonce uint64        // guarded by mu; 0 = none
	got   chan raft.RPC // guarded by mu; one slot
}

// expect waits for a transfer from now on.
func (e *expected) expect(nonce uint64) <-chan raft.RPC {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nonce, e.got = nonce, make(chan raft.RPC, 1)
	return e.got
}

// forget refuses what may still come.
func (e *expected) forget() {
	e.mu.Lock()
	got := e.got
	e.nonce, e.got = 0, nil
	e.mu.Unlock()
	select {
	case rpc := <-got:
		refuseState(rpc)
	default:
	}
}

// take reports whether rpc is a transfer of state, and not raft's; nothing of it is raft's
// business then, whether it is wanted or not. It does not wait.
func (e *expected) take(rpc raft.RPC, req *raft.InstallSnapshotRequest) bool {
	nonce, ok := bytes.CutPrefix(req.Leader, []byte(stateMark))
	if req.Term != 0 || !ok || len(nonce) != 8 {
		return false
	}
	e.mu.Lock()
	wanted := e.nonce != 0 && binary.BigEndian.Uint64(nonce) == e.nonce
	if wanted {
		e.nonce = 0
		e.got <- rpc
	}
	e.mu.Unlock()
	if !wanted {
		refuseState(rpc)
	}
	return true
}

// refuseState answers a transfer that nobody waits for. Its bytes have to be read, for the
// connection goes on after them, but not here.
func refuseState(rpc raft.RPC) {
	go func() {
		_, _ = io.Copy(io.Discard, rpc.Reader)
		answerState(rpc, false)
	}()
}

func answerState(rpc raft.RPC, taken bool) {
	rpc.Respond(&raft.InstallSnapshotResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Success: taken}, nil)
}

// reinstall replaces a state that is wrong by a copy of another server's.
func (g *Group) reinstall() {
	m := g.Machine()
	if !g.Doubt().replaceable() || g.raft.State() == raft.Leader || g.opts.Replicas == nil {
		return
	}
	g.reinstalling.Store(true)
	defer g.reinstalling.Store(false)
	for _, a := range g.ask(0) {
		if a.err != nil || a.report.Doubted {
			continue
		}
		err := g.reinstallFrom(a.server, m)
		if err == nil {
			g.obs.reinstalled.Inc()
			g.opts.Logger.Warn("the state of this replica was replaced by a copy of another server's, which was verified: it serves again", "group", g.opts.ID, "from", string(a.server.ID), "index", g.Machine().Applied())
			g.changed.fire()
			return
		}
		g.obs.reinstallFailed.Inc()
		g.opts.Logger.Warn("the state of another server could not be taken over; it is tried again", "group", g.opts.ID, "from", string(a.server.ID), "error", err)
	}
}

// reinstallFrom takes the state of a server in the place of old.
func (g *Group) reinstallFrom(from raft.Server, old *kv.Machine) error {
	nonce := rand.Uint64() | 1
	got := g.expected.expect(nonce)
	defer g.expected.forget()
	ctx, cancel := g.bounded(g.opts.Timing.ReadRound)
	defer cancel()
	if err := g.opts.Replicas.AskState(ctx, from, StateRequest{To: g.opts.ServerID, Applied: old.Applied(), Nonce: nonce}); err != nil {
		return err
	}
	start := time.NewTimer(stateStart)
	defer start.Stop()
	select {
	case rpc := <-got:
		return g.takeOver(rpc, old)
	case <-start.C:
		return fault.New(fault.Timeout, "group.reinstall", "the transfer did not begin in time")
	case <-g.stop:
		return errClosing()
	}
}

// takeOver receives a state, verifies it, and swaps it in.
func (g *Group) takeOver(rpc raft.RPC, old *kv.Machine) error {
	s := g.disk.snaps
	dir, err := s.newDir(databasePrefix)
	if err == nil {
		err = g.receiveState(rpc, s.path(dir))
	}
	answerState(rpc, err == nil)
	if err != nil {
		s.discard(dir)
		return err
	}
	m, err := s.open(s.path(dir))
	if err != nil {
		s.discard(dir)
		return err
	}
	var oldDir string
	if err = g.verifyReceived(m); err == nil {
		oldDir, err = g.swapIn(dir, m, old)
	}
	if err != nil {
		err = errors.Join(err, m.Close())
		s.discard(dir)
		return err
	}
	if err := old.Close(); err != nil {
		g.opts.Logger.Warn("cannot close the replaced database", "group", g.opts.ID, "error", err)
	}
	s.remove(oldDir)
	return nil
}

// receiveState unpacks the stream. When the group closes it ends at once; whoever reads from
// the network goes on until the connection ends.
func (g *Group) receiveState(rpc raft.RPC, dir string) error {
	req, ok := rpc.Command.(*raft.InstallSnapshotRequest)
	if !ok {
		return fmt.Errorf("transfer of type %T", rpc.Command)
	}
	r, w := io.Pipe()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, err := io.Copy(w, io.LimitReader(rpc.Reader, req.Size))
		w.CloseWithError(err)
		if err != nil {
			_, _ = io.Copy(io.Discard, rpc.Reader)
		}
	}()
	unpacked := make(chan error, 1)
	go func() {
		got, err := unpack(g.opts.volume, r, dir)
		if err == nil && got.restore {
			err = errors.New("it is a backup and not a state")
		}
		r.CloseWithError(err)
		unpacked <- err
	}()
	select {
	case err := <-unpacked:
		select { // raft's transport reads the next request from the same connection
		case <-copied:
		case <-g.stop:
		}
		return errors.Join(err, g.opts.volume.syncDir(filepath.Dir(dir)))
	case <-g.stop:
		r.CloseWithError(errClosing())
		return errors.Join(errClosing(), <-unpacked)
	}
}

// verifyReceived recounts what was received.
func (g *Group) verifyReceived(m *kv.Machine) error {
	v, err := m.Verify(func(int) error {
		select {
		case <-g.stop:
			return errClosing()
		default:
			return nil
		}
	})
	if err == nil && v.Wrong != "" {
		err = fault.New(fault.Corrupt, "group.reinstall", "the received state is wrong too: "+v.Wrong)
	}
	return err
}

// swapIn brings m up to what this server has applied and makes it the live machine. It
// returns the directory of the one before.
func (g *Group) swapIn(dir string, m, old *kv.Machine) (oldDir string, err error) {
	f := g.disk.fsm
	// What the state holds must be in the log for good, or a start would find it ahead of the log.
	if err := g.waitCommitted(m.Applied()); err != nil {
		return "", err
	}
	if err := g.catchUp(m, old); err != nil {
		return "", err
	}
	held, err := m.Flush()
	if err != nil {
		return "", err
	}
	f.swap.Lock() // nothing is applied from here on
	defer f.swap.Unlock()
	if f.machine() != old || g.raft.State() == raft.Leader {
		return "", fault.New(fault.Unavailable, "group.reinstall", "a snapshot was received meanwhile, or this server leads now")
	}
	if err := g.catchUp(m, old); err != nil {
		return "", err
	}
	oldDir = f.store.database()
	if err := f.store.replace(oldDir, dir, held); err != nil {
		return "", err
	}
	f.live.Store(m)
	g.damaged.Store(false) // it was verified
	f.doubt.Store(nil)
	f.clock.observe(m.Clock())
	return oldDir, nil
}

// catchUp applies to m what this server's log holds up to what old has applied.
func (g *Group) catchUp(m, old *kv.Machine) error {
	if have, want := m.Applied(), old.Applied(); have < want {
		return g.disk.replay(m, have+1, want)
	}
	return nil
}

// waitCommitted waits until the log of this server is final up to index.
func (g *Group) waitCommitted(index uint64) error {
	ctx, cancel := g.bounded(stateStart)
	defer cancel()
	tick := time.NewTicker(settlePoll)
	defer tick.Stop()
	for g.raft.CommitIndex() < index {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fault.New(fault.Timeout, "group.reinstall", fmt.Sprintf("the log did not get to entry %d, up to which the received state goes", index))
		}
	}
	return nil
}

// replace makes another database the one that is opened from now on. It holds, on disk,
// every command up to held.
func (s *snapshots) replace(of, dir string, held uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil || s.current.Database != of || s.current.Snapshot != nil && s.current.Snapshot.Applied > held {
		return fault.New(fault.Unavailable, "group.reinstall", "a snapshot was taken or received meanwhile")
	}
	if !s.volume.exists(s.path(dir)) {
		return fault.New(fault.Internal, "group.reinstall", "the received database "+s.path(dir)+" is gone")
	}
	return s.writeLocked(manifest{Database: dir, Snapshot: s.current.Snapshot})
}
