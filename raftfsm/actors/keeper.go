package actors

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// Group has the methods of a Raft group that a Keeper needs.
type Group interface {
	// Leading reports whether this server leads and has applied an entry of its term.
	Leading() bool
	// Term returns the newest known term.
	Term() uint64
	// Machine returns the state machine.
	Machine() *kv.Machine
	// Commit proposes a request. It returns the result and the position once the request is applied here.
	Commit(ctx context.Context, r *command.Request) (kv.Result, raftlog.Position, error)
	// Confirm returns a position that this server has applied, after a majority has confirmed that it leads.
	Confirm(ctx context.Context) (raftlog.Position, error)
}

const (
	proposeTimeout = 10 * time.Second
	retryEnd       = 500 * time.Millisecond // pause before a failed proposal is repeated
	page           = 500                    // records that are read or removed at once
)

const (
	opRegister = "actors.Register"
	opRenew    = "actors.Renew"
	opActivate = "actors.Activate"
	opLocate   = "actors.Locate"
	opRelease  = "actors.Release"
	opTransfer = "actors.Transfer"
)

// Keeper places the actors of one group and ends the sessions of hosts. It works only while its server leads the
// group. It is safe for concurrent use.
type Keeper struct {
	logger   *slog.Logger
	patience time.Duration

	mu       sync.Mutex
	group    Group // nil until Attach
	closed   bool
	machine  *kv.Machine // from which the sessions were read; nil = not read
	term     uint64
	restored uint64
	sessions map[string]*session
	// ends has the sessions whose end this server has proposed in the present term. The proposal may be applied at
	// any time in that term. So such a session is never renewed, not even after the sessions were read again.
	ends     map[string]bool
	kept     map[string]time.Time // by scope: until when no actors are spread
	doubts   uint64               // number of proposals with an unknown outcome
	deciding bool                 // the goroutine of decide runs
	running  sync.WaitGroup
	closing  context.Context
	stop     context.CancelFunc
}

// session is what this leader stores about the session of a host. The leader creates it once the request that begins
// the session is applied.
type session struct {
	Host
	until  time.Time // when the leader proposes the end of the session
	timer  *time.Timer
	ending bool // the end is proposed, so the session is not renewed any more
	actors int  // number of actors that the host has reported, plus the actors placed since
	// counted is true if the host has reported the number of its actors to this leader.
	counted bool
	rests   time.Time // until then, the host takes no part in advice
	taken   []Actor   // actors that were transferred to the host, for its next advice
}

// NewKeeper returns a Keeper that does nothing until Attach is called. The parameter patience is the constant Patience;
// only tests use other values.
func NewKeeper(patience time.Duration, logger *slog.Logger) *Keeper {
	k := &Keeper{logger: logger, patience: patience, sessions: map[string]*session{},
		ends: map[string]bool{}, kept: map[string]time.Time{}}
	k.closing, k.stop = context.WithCancel(context.Background())
	return k
}

// Attach gives the Keeper its group, which must be open.
func (k *Keeper) Attach(g Group) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.group = g
}

// Close ends all timers, and waits for the goroutines of the Keeper.
func (k *Keeper) Close() {
	k.mu.Lock()
	k.closed = true
	k.stop()
	k.forgetLocked()
	k.mu.Unlock()
	k.running.Wait()
}

func (k *Keeper) forgetLocked() {
	for _, s := range k.sessions {
		s.timer.Stop()
	}
	clear(k.sessions)
	k.machine = nil
}

// enterLocked returns the state machine of the group. If the cached sessions may be out of date, it first reads the
// sessions again. The cached sessions may be out of date in the first call in a term, after a restore, and after a
// proposal with an unknown outcome.
//
// enterLocked returns fault.NotLeader if this server does not lead, and fault.Unavailable before Attach and after
// Close. op names the operation in errors. The caller holds mu.
func (k *Keeper) enterLocked(op string) (*kv.Machine, error) {
	if k.closed || k.group == nil {
		return nil, fault.New(fault.Unavailable, op, "this node is starting or shutting down")
	}
	term := k.group.Term()
	if !k.group.Leading() {
		k.forgetLocked()
		return nil, fault.New(fault.NotLeader, op, "this server does not lead the group of the actor")
	}
	m := k.group.Machine()
	if restored := m.Restored(); k.machine != m || k.term != term || k.restored != restored {
		k.forgetLocked()
		wait := k.patience
		if k.term != term {
			k.term, wait = term, min(wait, Takeover)
			clear(k.ends)
			clear(k.kept)
		}
		if err := k.readLocked(m, wait); err != nil {
			k.forgetLocked()
			return nil, fault.Wrap(err, op, "reading the hosts of actors")
		}
		k.machine, k.restored = m, restored
	}
	return m, nil
}

// readLocked reads all sessions from m. Each session ends if its host does not renew it within patience from now.
// readLocked also resumes the removal of activations whose sessions have ended. The caller holds mu.
func (k *Keeper) readLocked(m *kv.Machine, patience time.Duration) error {
	var ended []string
	for _, prefix := range []string{sessionRecord, endedRecord} {
		for after := ""; ; {
			found, more, err := m.List(kv.LockStore, prefix, after, page, 0)
			if err != nil {
				return err
			}
			for i := range found {
				after = found[i].Key
				if prefix == endedRecord {
					ended = append(ended, after[1:])
					continue
				}
				h, there, err := readHost(m, after[1:])
				if err != nil {
					return err
				}
				if there {
					k.beginLocked(h, patience)
				}
			}
			if !more {
				break
			}
		}
	}
	if len(ended) > 0 {
		k.running.Go(func() { k.sweep(m, ended) })
	}
	return nil
}

func readHost(m *kv.Machine, id string) (Host, bool, error) {
	v, err := m.GetMany(kv.LockStore, []string{SessionKey(id), DescriptionKey(id)}, 0)
	if err != nil {
		return Host{}, false, err
	}
	return ParseHost(id, v[0], v[1])
}

func (k *Keeper) beginLocked(h Host, wait time.Duration) {
	s := &session{Host: h, until: time.Now().Add(wait), ending: k.ends[h.ID]}
	if s.ending {
		wait = retryEnd
	}
	s.timer = time.AfterFunc(wait, func() { k.expire(s) })
	k.sessions[h.ID] = s
}

// doubt handles the error of a proposal. It does nothing unless the error means that the outcome is unknown. Such a
// proposal may still be applied later in this term. Therefore doubt makes the next call read the sessions again, and
// runs decide in a goroutine. When decide has returned, the next call reads the sessions once more.
func (k *Keeper) doubt(err error) {
	if !fault.Is(err, fault.Indeterminate) && !fault.Is(err, fault.Timeout) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.machine = nil
	k.doubts++
	if !k.deciding && !k.closed {
		k.deciding = true
		k.running.Go(k.decide)
	}
}

// decide waits until no proposal with an unknown outcome can be applied any more. To do so, it commits an entry without
// effect. A leader's proposals are applied in order, so an earlier proposal is applied before this entry or never. If
// another outcome becomes unknown in the meantime, decide commits one more entry.
//
// Without decide, a session could be stored late, and this leader would neither serve its host nor end the session.
func (k *Keeper) decide() {
	for {
		k.mu.Lock()
		doubts := k.doubts
		k.mu.Unlock()
		ctx, cancel := context.WithTimeout(k.closing, proposeTimeout)
		_, _, err := k.group.Commit(ctx, &command.Request{Kind: command.KindTick})
		cancel()
		k.mu.Lock()
		repeat := fault.Is(err, fault.Indeterminate) || fault.Is(err, fault.Timeout) || err == nil && doubts != k.doubts
		if repeat = repeat && !k.closed; !repeat {
			k.machine, k.deciding = nil, false // after another error, this server does not lead any more
			k.mu.Unlock()
			return
		}
		k.mu.Unlock()
		if err != nil {
			select {
			case <-time.After(retryEnd):
			case <-k.closing.Done():
			}
		}
	}
}

// commit proposes a request and waits for its result. It has its own timeout and continues when ctx ends, so that a
// caller that gives up does not leave an unknown outcome.
func (k *Keeper) commit(ctx context.Context, r *command.Request) (kv.Result, raftlog.Position, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), proposeTimeout)
	defer cancel()
	res, pos, err := k.group.Commit(ctx, r)
	k.doubt(err)
	return res, pos, err
}

func errEnded(op string) error {
	return &fault.Error{Code: fault.NotFound, Op: op, Msg: "the session of the host has ended",
		Hint: "it registers again by itself"}
}

// Register begins the session of h and returns the revision of the session. If a session with the id of h exists,
// Register only replaces its description.
//
// If h has the revision of a session that has ended, Register returns fault.NotFound and begins no new session. The
// host may not know about the end yet, and would keep its actors.
func (k *Keeper) Register(ctx context.Context, h Host) (revision uint64, err error) {
	k.mu.Lock()
	m, err := k.enterLocked(opRegister)
	s := k.sessions[h.ID]
	k.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if h.Revision != 0 && (s == nil || s.Revision != h.Revision) {
		return 0, errEnded(opRegister)
	}
	if s == nil {
		if _, there, err := readHost(m, h.ID); err != nil || there {
			return 0, errAgain(opRegister, err) // an earlier attempt was applied in the meantime
		}
		return k.admit(ctx, h)
	}
	h.Revision = s.Revision
	res, _, err := k.commit(ctx, describe(&h))
	if err != nil {
		return 0, err
	}
	if res.Outcome != kv.Applied {
		return 0, errEnded(opRegister)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	// The sessions may have been read again before the description was applied.
	if s = k.sessions[h.ID]; s != nil && s.Revision == h.Revision {
		s.Types, s.Draining = h.Types, h.Draining
	}
	return h.Revision, nil
}

// errAgain returns err if it is not nil. Otherwise it returns fault.Unavailable, after which the client repeats its
// call.
func errAgain(op string, err error) error {
	if err != nil {
		return err
	}
	return fault.New(fault.Unavailable, op, "the directory has changed in the meantime")
}

func (k *Keeper) admit(ctx context.Context, h Host) (uint64, error) {
	res, _, err := k.commit(ctx, register(&h))
	switch {
	case err != nil:
		return 0, err
	case res.Outcome != kv.Applied:
		k.mu.Lock()
		defer k.mu.Unlock()
		k.machine = nil
		return 0, errEnded(opRegister)
	}
	h.Revision = res.Revisions[0]
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.machine == nil {
		return h.Revision, nil // the next call reads the sessions
	}
	delete(k.kept, h.Scope)
	if k.sessions[h.ID] == nil && !k.closed {
		k.beginLocked(h, k.patience)
	}
	return h.Revision, nil
}

// Renew extends the session of a host. actors is the number of actors on the host. canGive is true if the host can
// transfer some of them to other hosts now. Renew returns fault.NotFound if the session has ended or is about to end.
func (k *Keeper) Renew(ctx context.Context, host string, actors int, canGive bool) (p Advice, err error) {
	k.mu.Lock()
	_, err = k.enterLocked(opRenew)
	if err == nil {
		if s := k.sessions[host]; s == nil || s.ending {
			err = errEnded(opRenew)
		} else {
			s.until, s.actors = time.Now().Add(k.patience), actors
			s.timer.Reset(k.patience)
			s.counted = true
			p = k.adviseLocked(s, canGive)
		}
	}
	group := k.group
	k.mu.Unlock()
	if err != nil && !fault.Is(err, fault.NotFound) {
		return Advice{}, err
	}
	if _, unsure := group.Confirm(ctx); unsure != nil { // only the present leader knows the session
		return Advice{}, unsure
	}
	return p, err
}

// expire ends a session that was not renewed in time.
func (k *Keeper) expire(s *session) {
	k.mu.Lock()
	left := time.Until(s.until)
	switch {
	case k.closed || k.sessions[s.ID] != s:
		k.mu.Unlock()
		return
	case left > 0 && !s.ending:
		s.timer.Reset(left)
		k.mu.Unlock()
		return
	}
	if _, err := k.enterLocked(opRenew); err != nil || k.sessions[s.ID] != s {
		k.mu.Unlock()
		return // the leader of the present term has its own timer for the session
	}
	s.ending, k.ends[s.ID] = true, true
	k.running.Add(1)
	k.mu.Unlock()
	defer k.running.Done()
	k.logger.Warn("a host of actors does not renew its session: its actors are free for other hosts", "node", s.Node,
		"app_id", s.App, "host", s.ID)
	if err := k.end(k.closing, s); err != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.closed && k.sessions[s.ID] == s {
			s.timer.Reset(retryEnd)
		}
	}
}

func (k *Keeper) end(ctx context.Context, s *session) error {
	res, _, err := k.commit(ctx, end(&s.Host))
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sessions[s.ID] == s {
		s.timer.Stop()
		delete(k.sessions, s.ID)
	}
	delete(k.ends, s.ID)
	delete(k.kept, s.Scope)
	if m := k.machine; m != nil && !k.closed && res.Outcome == kv.Applied {
		k.running.Go(func() { k.sweep(m, []string{s.ID}) })
	}
	return nil
}

// Leave ends the session of a host that has requested this.
func (k *Keeper) Leave(ctx context.Context, host string) error {
	k.mu.Lock()
	_, err := k.enterLocked(opRelease)
	s := k.sessions[host]
	if s != nil {
		s.ending, k.ends[s.ID] = true, true
	}
	k.mu.Unlock()
	if err != nil || s == nil {
		return err
	}
	return k.end(ctx, s)
}

// sweep removes the activations of hosts whose sessions have ended. If this server stops leading before all are
// removed, the next leader continues. An activation that is left does no harm, because any other host may replace it.
func (k *Keeper) sweep(m *kv.Machine, ended []string) {
	gone := map[string]bool{}
	for _, id := range ended {
		gone[id] = true
	}
	for after := ""; ; {
		found, more, err := m.List(kv.LockStore, activationRecord, after, page, 0)
		if err != nil {
			return
		}
		keys := make([]string, len(found))
		for i := range found {
			keys[i], after = found[i].Key, found[i].Key
		}
		if err := k.removeEnded(m, keys, gone); err != nil {
			k.logger.Debug("records of actors without a host stay until the next leader removes them", "error", err)
			return
		}
		if !more {
			break
		}
	}
	for _, id := range ended {
		if _, _, err := k.commit(k.closing, swept(id)); err != nil {
			return
		}
	}
}

func (k *Keeper) removeEnded(m *kv.Machine, keys []string, gone map[string]bool) error {
	values, err := m.GetMany(kv.LockStore, keys, 0)
	if err != nil {
		return err
	}
	var owned []Owned
	for i, key := range keys {
		a, there, err := ParseActivation(values[i])
		if err != nil {
			return err
		}
		if actor, ok := ParseKey(key); ok && there && gone[a.Host] {
			owned = append(owned, Owned{actor, a.Epoch})
		}
	}
	return k.Release(k.closing, owned)
}

// Release removes the given activations. It skips an activation if the actor's record has another epoch.
func (k *Keeper) Release(ctx context.Context, owned []Owned) error {
	if len(owned) == 0 {
		return nil
	}
	k.mu.Lock()
	_, err := k.enterLocked(opRelease)
	k.mu.Unlock()
	if err != nil {
		return err
	}
	_, err = each(owned, func(some []Owned) (bool, error) {
		res, _, err := k.commit(ctx, release(some))
		return res.Outcome == kv.Applied, err
	})
	return err
}

// Transfer makes a host the owner of actors that another host owned. The parameter host is the id of the new owner's
// session. Transfer skips an actor if its record has another epoch than its element of owned. Transfer returns
// fault.NotFound if the session has ended, or if the host accepts no more actors.
//
// The next advice for the host lists the new actors, including those from an earlier attempt with an unknown outcome.
// keep is true if an operator moves the actors. The leader then does not spread the actors of this scope for keepFor.
func (k *Keeper) Transfer(ctx context.Context, owned []Owned, host string, keep bool) error {
	if len(owned) == 0 {
		return nil
	}
	k.mu.Lock()
	m, err := k.enterLocked(opTransfer)
	var h Host
	if s := k.sessions[host]; err == nil && (s == nil || s.ending) {
		err = errEnded(opTransfer)
	} else if err == nil {
		h = s.Host
	}
	k.mu.Unlock()
	switch {
	case err != nil:
		return err
	case h.Draining:
		return fault.New(fault.NotFound, opTransfer, "the host takes no further actors")
	}
	taken, err := each(owned, func(some []Owned) (bool, error) {
		res, _, err := k.commit(ctx, transfer(some, &h))
		if err == nil && res.Outcome != kv.Applied && res.Key == SessionKey(h.ID) {
			err = errEnded(opTransfer)
		}
		if err != nil || res.Outcome == kv.Applied || len(some) > 1 {
			return res.Outcome == kv.Applied, err
		}
		return isHostOf(m, h.ID, some[0].Actor)
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tookLocked(host, taken)
	if keep && err == nil {
		k.kept[h.Scope] = time.Now().Add(keepFor)
	}
	return err
}

// isHostOf reports whether the record of an actor names the host with this id.
func isHostOf(m *kv.Machine, id string, actor Actor) (bool, error) {
	v, err := m.GetMany(kv.LockStore, []string{actor.Key()}, 0)
	if err != nil {
		return false, err
	}
	a, found, err := ParseActivation(v[0])
	return found && a.Host == id, err
}

// each changes all given actors with one call of commit. The function commit returns false if the state machine refuses
// the request. In that case, each calls commit again, once per actor. The result done has the actors for which commit
// has returned true. After an error, each does not try the remaining actors.
func each(owned []Owned, commit func([]Owned) (applied bool, err error)) (done []Owned, err error) {
	switch applied, err := commit(owned); {
	case err != nil:
		return nil, err
	case applied:
		return owned, nil
	case len(owned) == 1:
		return nil, nil
	}
	for i := range owned {
		applied, err := commit(owned[i : i+1])
		if err != nil {
			return done, err
		}
		if applied {
			done = append(done, owned[i])
		}
	}
	return done, nil
}
