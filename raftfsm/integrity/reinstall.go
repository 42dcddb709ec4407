package integrity

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
	"github.com/quorate/quorate/raftfsm/snapshot"
)

// A server with a wrong state keeps its log, its term and its votes, which are right, and gets another state. It
// requests the state from a server that is not in doubt. That server sends a checkpoint as a request of raft to
// install a snapshot. The request has term 0, which no raft instance accepts, so only a waiting receiver handles it.
// The receiver verifies the state completely and brings it up to date from the local log. Then one rename of the
// manifest replaces the wrong database.
//
// Invariant: raft does not notice the replacement. The new machine has every command that raft has passed to the old
// machine. This includes commands that the old machine could not apply because its database is damaged. The new
// machine may also have commands that raft passes later. It skips these commands.

// StateRequest requests a copy of a server's state.
type StateRequest struct {
	To      raft.ServerID // the server that requests the state
	Applied uint64        // the state must include every entry up to this index
	Nonce   uint64        // identifies the transfer
}

const (
	stateMark = "state"

	// stateStart limits two waits: until an accepted transfer begins, and until all entries in the received state are
	// committed.
	stateStart = 30 * time.Second

	// commitPoll is the interval at which the commit index is checked.
	commitPoll = 2 * time.Millisecond
)

// AnswerState accepts another server's request for a copy of this server's state. A background goroutine sends one
// copy at a time, and one further request can wait. AnswerState returns fault.Unavailable in these cases:
//
//   - A request is already waiting.
//   - This server does not trust its state.
//   - This server has applied fewer entries than ask.Applied.
//   - The group is closing.
func (w *Watch) AnswerState(ask StateRequest) error {
	refuse := func(why string) error {
		return fault.New(fault.Unavailable, "group.AnswerState", "this server cannot send its state: "+why)
	}
	switch {
	case w.FSM.Doubt() != nil:
		return refuse("it is in doubt itself")
	case w.FSM.Machine().Applied() < ask.Applied:
		return refuse("it has not applied as much")
	}
	select {
	case w.supply <- ask:
		return nil
	case <-w.Closing.Done():
		return errClosing()
	default:
		return refuse("it is already sending it to another server")
	}
}

// SupplyStates sends the state to servers that have requested it, until the group closes.
func (w *Watch) SupplyStates() {
	for {
		select {
		case ask := <-w.supply:
			if err := w.send(ask); err != nil {
				w.Logger.Warn("the state could not be sent to a server that needs it; that server requests it again",
					"group", w.Group,
					"to", string(ask.To), "error", err)
			} else {
				w.Logger.Info("the state was sent to a server that needed it", "group", w.Group, "to", string(ask.To))
			}
		case <-w.Closing.Done():
			return
		}
	}
}

func (w *Watch) send(ask StateRequest) error {
	c, err := w.Snapshots.CheckpointAt(w.Snapshots.Index(), ask.Applied)
	if err != nil {
		return err
	}
	r := c.Reader()
	defer r.Close()
	if w.FSM.Doubt() != nil { // the doubt may have begun after the request
		return fault.New(fault.Unavailable, "group.AnswerState", "the state of this server is in doubt")
	}
	req := &raft.InstallSnapshotRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(w.Self), Addr: []byte(w.Self)},
		Leader:    binary.BigEndian.AppendUint64([]byte(stateMark), ask.Nonce), Size: c.Size,
	}
	taken, err := w.Sender.SendState(ask.To, req, &untilClosed{r, w.Closing.Done()})
	if err == nil && !taken {
		err = errors.New("the state was not accepted")
	}
	return err
}

// untilClosed ends a transfer when the group closes.
type untilClosed struct {
	io.Reader
	stop <-chan struct{}
}

// Read reads until the group closes.
func (u *untilClosed) Read(p []byte) (int, error) {
	select {
	case <-u.stop:
		return 0, errClosing()
	default:
		return u.Reader.Read(p)
	}
}

// Take handles the request r if it is a transfer of state from another server, and reports whether it is one. If Take
// returns true, the caller must not pass the request to Raft.
func (w *Watch) Take(rpc raft.RPC, r *raft.InstallSnapshotRequest) bool {
	return w.expected.take(rpc, r)
}

// Wrong reports whether the local state is known to be wrong, so that it must not be sent to other servers.
func (w *Watch) Wrong() bool { return w.FSM.Doubt().Replaceable() }

// Reinstalling reports whether this server is installing the state of another server.
func (w *Watch) Reinstalling() bool { return w.reinstalling.Load() }

// expected is the transfer of another server's state for which this server waits.
type expected struct {
	mu    sync.Mutex
	nonce uint64        // guarded by mu; 0 = none
	got   chan raft.RPC // guarded by mu; capacity 1
}

// expect allows one transfer with the given nonce. It returns the channel on which this transfer arrives.
func (e *expected) expect(nonce uint64) <-chan raft.RPC {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nonce, e.got = nonce, make(chan raft.RPC, 1)
	return e.got
}

// forget ends the wait for the expected transfer. The transfer is refused if it arrives later, or if it is still in the
// channel that expect returned.
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

// take handles a transfer of state, and returns false for any other request. If it returns true, the caller must not
// pass the request to Raft. The expected transfer is sent to the channel that expect returned. All other transfers are
// refused. take does not block.
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

// refuseState refuses a transfer that this server does not expect. It starts a goroutine that reads and discards the
// bytes of the transfer, because the connection is used for other requests afterwards.
func refuseState(rpc raft.RPC) {
	go func() {
		_, _ = io.Copy(io.Discard, rpc.Reader)
		answerState(rpc, false)
	}()
}

func answerState(rpc raft.RPC, taken bool) {
	rpc.Respond(&raft.InstallSnapshotResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax},
		Success: taken}, nil)
}

// reinstall replaces a wrong state by a copy of another server's state. It does nothing on the leader.
func (w *Watch) reinstall() {
	m := w.FSM.Machine()
	if !w.FSM.Doubt().Replaceable() || w.Raft.IsLeader() || w.Replicas == nil {
		return
	}
	w.reinstalling.Store(true)
	defer w.reinstalling.Store(false)
	for _, a := range w.Ask(0) {
		if a.Err != nil || a.Report.Doubted {
			continue
		}
		err := w.reinstallFrom(a.Server, m)
		if err == nil {
			w.Events.Reinstalled(true)
			w.Logger.Warn("the state of this replica was replaced by a verified copy of another server's: it serves "+
				"again", "group", w.Group, "from", string(a.Server.ID), "index", w.FSM.Machine().Applied())
			w.Events.Changed()
			return
		}
		w.Events.Reinstalled(false)
		w.Logger.Warn("the state of another server could not be installed; it is tried again", "group", w.Group,
			"from", string(a.Server.ID), "error", err)
	}
}

// reinstallFrom replaces the machine old by a copy of the state of the server from.
func (w *Watch) reinstallFrom(from raft.Server, old *kv.Machine) error {
	nonce := rand.Uint64() | 1
	got := w.expected.expect(nonce)
	defer w.expected.forget()
	ctx, cancel := w.bounded(w.ReadRound)
	defer cancel()
	if err := w.Replicas.AskState(ctx, from, StateRequest{To: w.Self, Applied: old.Applied(),
		Nonce: nonce}); err != nil {
		return err
	}
	start := time.NewTimer(stateStart)
	defer start.Stop()
	select {
	case rpc := <-got:
		return w.takeOver(rpc, old)
	case <-start.C:
		return fault.New(fault.Timeout, "group.reinstall", "the transfer did not begin in time")
	case <-w.Closing.Done():
		return errClosing()
	}
}

// takeOver receives a state, verifies it, and replaces the machine old by it.
func (w *Watch) takeOver(rpc raft.RPC, old *kv.Machine) error {
	s := w.Snapshots
	dir, err := s.NewDir(snapshot.DatabasePrefix)
	if err == nil {
		err = w.receiveState(rpc, s.Path(dir))
	}
	answerState(rpc, err == nil)
	if err != nil {
		s.Discard(dir)
		return err
	}
	m, err := s.OpenDatabase(s.Path(dir))
	if err != nil {
		s.Discard(dir)
		return err
	}
	var oldDir string
	if err = w.verifyReceived(m); err == nil {
		oldDir, err = w.swapIn(dir, m, old)
	}
	if err != nil {
		err = errors.Join(err, m.Close())
		s.Discard(dir)
		return err
	}
	if err := old.Close(); err != nil {
		w.Logger.Warn("cannot close the replaced database", "group", w.Group, "error", err)
	}
	s.Remove(oldDir)
	return nil
}

// receiveState unpacks the state that arrives in a transfer into dir. If the group closes, receiveState returns without
// waiting for the network. A goroutine may then still read from the connection until the connection ends.
func (w *Watch) receiveState(rpc raft.RPC, dir string) error {
	req, ok := rpc.Command.(*raft.InstallSnapshotRequest)
	if !ok {
		return fmt.Errorf("transfer of type %T", rpc.Command)
	}
	r, pipe := io.Pipe()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, err := io.Copy(pipe, io.LimitReader(rpc.Reader, req.Size))
		pipe.CloseWithError(err)
		if err != nil {
			_, _ = io.Copy(io.Discard, rpc.Reader)
		}
	}()
	unpacked := make(chan error, 1)
	go func() {
		got, err := snapshot.Unpack(w.Volume, r, dir)
		if err == nil && got.Restore {
			err = errors.New("it is a backup and not a state")
		}
		r.CloseWithError(err)
		unpacked <- err
	}()
	select {
	case err := <-unpacked:
		select { // raft's transport reads the next request from the same connection
		case <-copied:
		case <-w.Closing.Done():
		}
		return errors.Join(err, w.Volume.SyncDir(filepath.Dir(dir)))
	case <-w.Closing.Done():
		r.CloseWithError(errClosing())
		return errors.Join(errClosing(), <-unpacked)
	}
}

// verifyReceived verifies all records of the received state.
func (w *Watch) verifyReceived(m *kv.Machine) error {
	v, err := m.Verify(func(int) error {
		select {
		case <-w.Closing.Done():
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

// swapIn replaces the live machine with m, whose database is in dir. It returns the directory of the old database.
// Before the replacement, it applies entries from this server's log to m, until m has every command that Raft has
// passed to the old machine.
func (w *Watch) swapIn(dir string, m, old *kv.Machine) (oldDir string, err error) {
	// Everything in the new state must be committed in the log. Otherwise a later start would find a state ahead of
	// the log.
	if err := w.waitCommitted(m.Applied()); err != nil {
		return "", err
	}
	if err := w.catchUp(m); err != nil {
		return "", err
	}
	held, err := m.Flush()
	if err != nil {
		return "", err
	}
	return w.FSM.Replace(dir, m, old, held, func() error {
		if w.Raft.IsLeader() {
			return fault.New(fault.Unavailable, "group.reinstall", "this server leads now")
		}
		return w.catchUp(m)
	})
}

// catchUp applies entries of this server's log to m, up to the newest entry that Raft has passed to the live
// machine.
func (w *Watch) catchUp(m *kv.Machine) error {
	if have, want := m.Applied(), max(w.FSM.Machine().Applied(), w.FSM.Passed()); have < want {
		return snapshot.Replay(w.Log, m, have+1, want)
	}
	return nil
}

// waitCommitted waits until the commit index of this server reaches index. It returns fault.Timeout after stateStart,
// or if the group closes.
func (w *Watch) waitCommitted(index uint64) error {
	ctx, cancel := w.bounded(stateStart)
	defer cancel()
	tick := time.NewTicker(commitPoll)
	defer tick.Stop()
	for w.Raft.CommitIndex() < index {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fault.New(fault.Timeout, "group.reinstall",
				fmt.Sprintf("the log did not reach entry %d, the last one of the received state", index))
		}
	}
	return nil
}
