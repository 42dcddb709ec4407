package actors_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/actors"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// server is a server of the group with its Keeper.
type server struct {
	*grouptest.Member
	model  *model
	keeper *actors.Keeper
	term   uint64 // newest term in which the server was elected
	cancel context.CancelFunc
	life   context.Context // context of the calls that the server executes; ends with the process
}

func (s *server) open() {
	s.keeper = actors.NewKeeper(actors.Patience, slog.New(slog.DiscardHandler))
	s.life, s.cancel = context.WithCancel(context.Background())
	s.keeper.Attach(s)
}

// end ends the process of the server. The calls that it serves get no answer.
func (s *server) end() {
	s.model.End(s.Member)
	for _, c := range s.model.Calls() {
		if c.Member == s.Member {
			s.model.Answer(c, grouptest.Reply{Err: fault.New(fault.Indeterminate, "test", "the server has ended")})
		}
	}
	s.cancel()
	s.keeper.Close()
	s.model.Settle()
}

// Confirm implements actors.Group.
func (s *server) Confirm(ctx context.Context) (raftlog.Position, error) { return s.Ask(ctx) }

// Commit implements actors.Group.
func (s *server) Commit(ctx context.Context, r *command.Request) (kv.Result, raftlog.Position, error) {
	return s.Propose(ctx, r)
}

func (m *model) server(at *grouptest.Member) *server { return m.servers[at.ID-1] }

func (m *model) restart(s *server) {
	s.end()
	s.open()
	m.Settle()
}

func (m *model) elect(s *server) {
	m.Mu.Lock()
	s.term = m.Term + 1
	m.heard[heard{uint64(s.ID), s.term, ""}] = m.elapsed()
	m.Mu.Unlock()
	m.Elect(s.Member)
}

func (m *model) elapsed() time.Duration { return time.Since(m.begun) }

// pass lets the duration d pass. Hosts whose time has come then send a renewal.
func (m *model) pass(d time.Duration) {
	<-time.After(d)
	m.Settle()
	for _, h := range m.hosts {
		if !h.paused && !h.dead && m.elapsed()-h.sent >= actors.RenewEvery {
			h.sent = m.elapsed()
			m.renew(h)
		}
	}
}

// modelHost is a host as the model knows it.
type modelHost struct {
	at                     int           // index in model.hosts
	id                     string        // id of the session
	rate                   float64       // speed of the clock; 1 = the speed of the leader
	turned                 time.Duration // how far the wall clock was turned
	revision               uint64        // of the session; 0 = there is none
	valid                  time.Duration // until when the host may serve, by its clock
	sent                   time.Duration // when the host has sent the newest renewal
	paused, dead, draining bool
	owned                  map[string]uint64 // epochs of the actors that the host owns
	asked                  map[string]int    // number of the newest request for an actor that the host does not own
	leader                 *server           // the leader as far as the host knows; nil = unknown
	releasing              map[string]uint64 // epochs of actors whose release is not confirmed
}

// begin starts a new host at an index of model.hosts.
func (m *model) begin(at int) {
	m.next++
	m.hosts[at] = &modelHost{at: at, id: fmt.Sprint("h", m.next), owned: map[string]uint64{}, sent: -time.Hour,
		asked: map[string]int{}, releasing: map[string]uint64{},
		rate: 0.95 + m.Rand.Float64()/10}
}

// host returns the living host with the given session id. It returns nil if the host is dead or has another session by
// now.
func (m *model) host(id string) *modelHost {
	for _, h := range m.hosts {
		if h.id == id && !h.dead {
			return h
		}
	}
	return nil
}

// clock returns the time of the clock with which the host measures leases.
func (m *model) clock(h *modelHost) time.Duration {
	now := time.Duration(float64(m.elapsed()) * h.rate)
	if m.rules.wall {
		now += h.turned
	}
	return now
}

// serves reports whether the host may start turns and relay answers.
func (m *model) serves(h *modelHost) bool { return !h.dead && h.revision != 0 && m.clock(h) < h.valid }

// request is executed at a server. take is called when the answer reaches the host; nil = nothing is called.
type request func(ctx context.Context, k *actors.Keeper) (take func(), err error)

// send sends a request of a host, which the schedule delivers later.
func (m *model) send(h *modelHost, what string, call request) {
	id, slow := h.id, m.Rand.IntN(20) == 0
	m.Note("%s: %s sends %s", m.elapsed(), id, what)
	m.inbox = append(m.inbox, &message{id: id, host: h, what: what, do: func(s *server) {
		ctx := grouptest.WithClient(s.life, id+" "+what)
		keeper := s.keeper
		go func() {
			take, err := call(ctx, keeper)
			m.Mu.Lock()
			defer m.Mu.Unlock()
			m.answers = append(m.answers, &answer{host: h, what: what, slow: slow, take: func() {
				if fault.Is(err, fault.NotLeader) || fault.Is(err, fault.Unavailable) {
					h.leader = nil
				}
				if take != nil && h.id == id { // the host still has the session
					take()
				}
			}})
		}()
	}})
}

// deliver lets a request reach a server.
func (m *model) deliver(one *message, whole bool) {
	s := one.host.leader
	if s == nil || whole || m.Rand.IntN(40) == 0 {
		s = m.servers[m.Rand.IntN(len(m.servers))]
		if m.Leader != nil && (whole || m.Rand.IntN(8) > 0) {
			s = m.server(m.Leader)
		}
		one.host.leader = s
	}
	if one.what == "renew" {
		m.Mu.Lock()
		m.heard[heard{uint64(s.ID), s.term, one.id}] = m.elapsed()
		m.Mu.Unlock()
	}
	m.Note("%s: %s of %s reaches server %d", m.elapsed(), one.what, one.id, s.ID)
	one.do(s)
	m.Settle()
}

// renew sends a renewal, or the registration of a host without a session.
func (m *model) renew(h *modelHost) {
	if h.revision == 0 {
		m.register(h)
		return
	}
	sent, id, owned := m.clock(h), h.id, len(h.owned)
	lease := m.rules.lease
	if lease == 0 {
		lease = actors.Lease
	}
	m.send(h, "renew", func(ctx context.Context, k *actors.Keeper) (func(), error) {
		_, err := k.Renew(ctx, id, owned, true)
		return func() {
			switch {
			case err == nil && m.rules.late:
				h.valid = max(h.valid, m.clock(h)+lease)
			case err == nil:
				h.valid = max(h.valid, sent+lease)
			case fault.Is(err, fault.NotFound):
				m.forget(h)
			}
		}, err
	})
}

// forget gives a host another session id, because its session has ended.
func (m *model) forget(h *modelHost) {
	m.next++
	h.id, h.revision, h.valid, h.draining = fmt.Sprint("h", m.next), 0, 0, false
	clear(h.owned)
	clear(h.releasing)
}

func (m *model) register(h *modelHost) {
	one := host(h.id)
	one.Draining, one.Revision = h.draining, h.revision
	m.send(h, "register", func(ctx context.Context, k *actors.Keeper) (func(), error) {
		revision, err := k.Register(ctx, one)
		return func() {
			switch {
			case err == nil:
				h.revision = revision
			case fault.Is(err, fault.NotFound):
				m.forget(h)
			}
		}, err
	})
}

func (m *model) drain(h *modelHost) {
	if !h.paused && !h.dead && h.revision != 0 {
		h.draining = true
		m.register(h)
	}
}

func (m *model) activate(h *modelHost, id string) {
	if h.paused || h.dead || h.revision == 0 || h.owned[id] != 0 || h.releasing[id] != 0 {
		return
	}
	m.next++
	session, number := h.id, m.next
	h.asked[id] = number
	m.send(h, "activate "+id, func(ctx context.Context, k *actors.Keeper) (func(), error) {
		p, err := k.Activate(ctx, session, actor(id))
		if err != nil {
			return nil, err
		}
		return func() {
			if h.asked[id] == number { // otherwise the host has sent a newer request
				h.asked[id] = 0
				m.activated(h, id, &p)
			}
		}, nil
	})
}

// write is a write of actor state.
type write struct {
	actor, host     string
	epoch, revision uint64
}

// write sends a write of an actor that the host believes to own. The write may arrive late.
func (m *model) write(h *modelHost) {
	if len(h.owned) == 0 || h.paused || h.dead {
		return
	}
	all := slices.Sorted(maps.Keys(h.owned))
	id := all[m.Rand.IntN(len(all))]
	w := &write{id, h.id, h.owned[id], h.revision}
	m.Note("%s: %s writes actor %s with epoch %d", m.elapsed(), h.id, id, w.epoch)
	m.inbox = append(m.inbox, &message{id: h.id, host: h, what: "write", slow: m.Rand.IntN(4) == 0, do: func(*server) {
		if m.Leader == nil {
			return
		}
		r := &command.Request{Kind: command.KindWrite}
		if !m.rules.unfenced {
			r.Ops = actors.Check(actor(id), w.epoch, w.host, w.revision)
		}
		r.Ops = append(r.Ops, command.Op{Kind: command.OpSet, Store: "default/s", Key: "app||T||" + id,
			Value: []byte(fmt.Sprint(w.epoch))})
		m.Group.Propose("write", w, r)
	}})
}

// release releases an actor, or transfers it to another host. The host first stops serving the actor. It does not
// activate the actor again before an answer confirms the release, because a request without an answer may arrive late.
func (m *model) release(h *modelHost, id string) {
	if epoch := h.owned[id]; epoch != 0 {
		h.releasing[id] = epoch
		delete(h.owned, id)
	}
	epoch := h.releasing[id]
	if epoch == 0 || h.paused || h.dead {
		return
	}
	if m.rules.hasty {
		delete(h.releasing, id)
	}
	to := m.hosts[m.Rand.IntN(len(m.hosts))]
	target, what := to.id, "release "+id
	if target == h.id || to.revision == 0 || m.Rand.IntN(2) == 0 {
		target = ""
	} else {
		m.moved[epoch], what = true, "transfer "+id
	}
	m.send(h, what, func(ctx context.Context, k *actors.Keeper) (func(), error) {
		owned, err := []actors.Owned{{Actor: actor(id), Epoch: epoch}}, error(nil)
		if target != "" {
			err = k.Transfer(ctx, owned, target, m.Rand.IntN(2) == 0)
		}
		if target == "" || fault.Is(err, fault.NotFound) {
			err = k.Release(ctx, owned)
		}
		return func() {
			if err == nil && h.releasing[id] == epoch {
				delete(h.releasing, id)
			}
		}, err
	})
}

// leave ends the session of a host. The host stops serving first.
func (m *model) leave(h *modelHost) {
	if h.paused || h.dead || h.revision == 0 {
		return
	}
	id := h.id
	m.Mu.Lock()
	m.left[id] = true
	m.Mu.Unlock()
	m.send(h, "leave", func(ctx context.Context, k *actors.Keeper) (func(), error) {
		return nil, k.Leave(ctx, id) // after an error, the leader ends the session by itself
	})
	m.forget(h)
}

// kill ends a host, and starts another host in its place.
func (m *model) kill(h *modelHost) {
	m.Note("%s: %s dies", m.elapsed(), h.id)
	h.dead = true
	m.begin(h.at)
}
