package actors_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/actors"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/kv"
)

// This file plays random schedules with the Keepers of three servers and some hosts, and checks these invariants:
//
//  1. The epochs of an actor only grow. An activation is replaced only if the session of its host has ended, or the
//     host has requested the release or the transfer of the actor.
//  2. A write of actor state is applied if and only if the record of the actor has the epoch of the write, and the
//     session of the host has not ended. Both conditions are those at the position of the write in the log.
//  3. The position that Activate returns is at or after the entry of the activation, so it has every write of earlier
//     epochs.
//  4. At no time do two hosts have a valid lease and own the same actor. Before the entry that ends a session, the
//     lease of the host has ended by the clock of the host. A session that has ended gets no further lease. Clocks of
//     hosts run up to 5 % faster or slower than the clock of the leader.
//  5. A session ends only if its host has left, or the leader has not received a renewal for Patience. Before the
//     first renewal in the term of a leader, Takeover is enough.
//  6. When the faults have ended, the sessions and activations of dead hosts disappear, and every actor can be
//     activated.
//
// The Keepers, the state machines and their databases are real. Package grouptest says what the schedule decides. Here
// the schedule also decides how long requests and answers take, and which of them are lost. It decides which server a
// request reaches, and when hosts pause, go on, leave, drain or die. A write may arrive long after its host has lost
// the actor. Hosts are models of the hosts in package api/actors. They send a renewal each RenewEvery. A renewal that
// was answered allows the host to serve for Lease from the moment at which the host sent it. testutil.Seeds says how
// to play other seeds.
type model struct {
	*grouptest.Group
	rules    rules
	servers  []*server
	hosts    []*modelHost
	next     int
	begun    time.Time
	inbox    []*message        // requests that are under way to a server
	before   *records          // records before the entry that is being applied
	now      *records          // records after the newest entry
	greatest map[string]uint64 // greatest epoch of each actor
	wrote    map[string]uint64 // epoch of the newest write of each actor
	born     map[uint64]uint64 // index of the entry that has stored an epoch, by epoch
	moved    map[uint64]bool   // epochs whose transfer was requested

	// Group.Mu guards the fields below.
	answers []*answer
	heard   map[heard]time.Duration // newest renewal that a server has received, or the time at which it began to lead
	ending  map[heard]bool          // sessions whose end a server has proposed in a term
	left    map[string]bool         // hosts that have sent a request to end their session
}

type heard struct {
	server, term uint64
	host         string // empty = all hosts: the begin of the term
}

// rules says which rules hosts break. With the zero value, hosts are correct. Each test of a mutant breaks one rule,
// and the model must notice it.
type rules struct {
	unfenced bool          // writes do not carry their epoch
	wall     bool          // the lease is checked by the wall clock, which the schedule turns
	late     bool          // the lease is counted from the answer to a renewal
	hasty    bool          // an actor is activated again before its release is answered
	lease    time.Duration // how long a host serves after a renewal; 0 = actors.Lease
}

// message is a request of a host that is under way.
type message struct {
	host *modelHost
	id   string // id that the host had when it sent the request
	what string
	slow bool
	do   func(s *server)
}

// answer is an answer to a host that is under way.
type answer struct {
	host *modelHost
	slow bool
	what string
	take func()
}

// records are the records of the directory.
type records struct {
	sessions map[string]uint64 // revisions, by host
	actors   map[string]actors.Activation
}

func (m *model) read() *records {
	r := &records{map[string]uint64{}, map[string]actors.Activation{}}
	for _, prefix := range []string{actors.Sessions, actors.Activations} {
		found, _, err := m.Tip.List(kv.LockStore, prefix, "", 1000, 0)
		testutil.Must(m.T, err)
		for i := range found {
			v, err := m.Tip.Get(kv.LockStore, found[i].Key, 0)
			testutil.Must(m.T, err)
			if prefix == actors.Sessions {
				r.sessions[found[i].Key[1:]] = v.Revision
				continue
			}
			a, _, err := actors.ParseActivation(v)
			testutil.Must(m.T, err)
			key, _ := actors.ParseKey(found[i].Key)
			r.actors[key.ID] = a
		}
	}
	return r
}

// called checks invariant 5 when a Keeper proposes the end of a session. The caller holds Mu.
func (m *model) called(c *grouptest.Call) {
	if c.Kind != grouptest.Commit || c.Client != nil || !strings.HasPrefix(c.Label, actors.Sessions) {
		return
	}
	at := heard{uint64(c.Member.ID), m.server(c.Member).term, c.Label[1:]}
	if m.ending[at] || m.left[at.host] {
		return // the end is proposed again, or the host has left
	}
	m.ending[at] = true
	all := at
	all.host = ""
	want := actors.Takeover // without a renewal in this term
	if m.heard[at] > 0 {
		want = actors.Patience
	}
	if quiet := m.elapsed() - max(m.heard[at], m.heard[all]); quiet < want {
		m.FailLocked("server %d ends the session of %s %s after it has received a renewal, want %s", c.Member.ID,
			at.host, quiet, want)
	}
}

// judge checks the invariants on what a log entry has changed.
func (m *model) judge(c *grouptest.Call, r kv.Result) {
	before, after := m.before, m.read()
	m.now = after
	for id, a := range after.actors {
		old, was := before.actors[id]
		if was && old.Epoch == a.Epoch {
			continue
		}
		m.born[a.Epoch] = m.Last()
		if a.Epoch <= m.greatest[id] {
			m.Fail("actor %s has epoch %d after %d", id, a.Epoch, m.greatest[id])
		}
		m.greatest[id] = a.Epoch
		switch {
		case before.sessions[a.Host] == 0:
			m.Fail("actor %s is activated at %s, whose session has ended", id, a.Host)
		case was && before.sessions[old.Host] != 0 && !m.moved[old.Epoch]:
			m.Fail("actor %s is taken from %s, which has a session, by %s", id, old.Host, a.Host)
		}
	}
	for id := range before.sessions {
		if h := m.host(id); after.sessions[id] == 0 && h != nil && m.serves(h) {
			m.Fail("the session of %s ends while its lease is valid", id)
		}
	}
	if w, _ := c.Client.(*write); w != nil {
		m.judgeWrite(w, r.Outcome == kv.Applied)
	}
}

func (m *model) judgeWrite(w *write, applied bool) {
	a, owned := m.before.actors[w.actor]
	may := owned && a.Epoch == w.epoch && a.Host == w.host && m.before.sessions[w.host] == w.revision
	switch {
	case applied && w.epoch < m.wrote[w.actor]:
		m.Fail("actor %s is written with epoch %d after %d", w.actor, w.epoch, m.wrote[w.actor])
	case applied && !may:
		m.Fail("actor %s is written with epoch %d of %s; its record is %+v", w.actor, w.epoch, w.host, a)
	case !applied && may:
		m.Fail("a write of the owner of actor %s is refused", w.actor)
	case applied:
		m.wrote[w.actor] = w.epoch
	}
}

// check checks invariant 4 at the present time.
func (m *model) check() {
	serving := map[string]string{}
	for _, h := range m.hosts {
		if !m.serves(h) {
			continue
		}
		if m.now.sessions[h.id] == 0 {
			m.Fail("%s has a valid lease, and its session has ended", h.id)
		}
		for id := range h.owned {
			if other := serving[id]; other != "" {
				m.Fail("hosts %s and %s both serve actor %s", other, h.id, id)
			}
			serving[id] = h.id
		}
	}
}

// activated checks an answer to Activate.
func (m *model) activated(h *modelHost, id string, p *actors.Placed) {
	switch born := m.born[p.Epoch]; {
	case born == 0:
		m.Fail("%s has got epoch %d of actor %s, which was never stored", h.id, p.Epoch, id)
	case p.Position.Index < born:
		m.Fail("%s has got position %d with epoch %d, whose entry is %d", h.id, p.Position.Index, p.Epoch, born)
	}
	if p.Owner.ID == h.id {
		h.owned[id] = p.Epoch
	}
}

// step plays one random step of the schedule.
func (m *model) step() {
	h, id := m.hosts[m.Rand.IntN(len(m.hosts))], fmt.Sprint(m.Rand.IntN(4))
	s := m.servers[m.Rand.IntN(len(m.servers))]
	switch n := m.Rand.IntN(1000); {
	case n < 560:
		m.progress(false)
	case n < 720:
		m.pass(time.Duration(m.Rand.IntN(50_000)) * time.Microsecond)
	case n < 820:
		m.activate(h, id)
	case n < 880:
		m.write(h)
	case n < 895:
		m.release(h, id)
	case n < 897:
		m.leave(h)
	case n < 898:
		m.drain(h)
	case n < 906:
		h.paused = true
	case n < 920:
		h.paused = false
	case n < 922:
		m.kill(h)
	case n < 926:
		h.turned += time.Duration(m.Rand.IntN(8)-4) * time.Second
	case n < 960:
		s.CatchUp()
	case n < 962:
		m.restart(s)
	case s.Member == m.Leader:
	case n < 966, n < 975 && m.Leader == nil:
		m.elect(s)
	case n < 980:
		m.Depose(s.Member)
	case n < 983:
		m.Replace(s.Member)
	}
	m.check()
}

// progress lets one call, request or answer go on. It returns false if there is none. If whole is true, nothing is
// lost or slow.
func (m *model) progress(whole bool) bool {
	calls := m.Calls()
	m.Mu.Lock()
	answers := m.answers
	m.Mu.Unlock()
	n := len(calls) + len(m.inbox) + len(answers)
	if n == 0 {
		return false
	}
	lost := !whole && m.Rand.IntN(20) == 0
	switch n = m.Rand.IntN(n); {
	case n < len(calls):
		if whole || calls[n].Client != nil || m.Rand.IntN(6) == 0 { // calls of the Keeper itself are slow
			m.Release(calls[n], whole)
		}
	case n < len(calls)+len(m.inbox):
		one := m.inbox[n-len(calls)]
		if one.slow && !whole && m.Rand.IntN(20) > 0 {
			return true
		}
		m.inbox = slices.DeleteFunc(m.inbox, func(o *message) bool { return o == one })
		if !lost {
			m.deliver(one, whole)
		}
	default:
		a := answers[n-len(calls)-len(m.inbox)]
		if a.host.paused && !a.host.dead || a.slow && !whole && m.Rand.IntN(20) > 0 {
			return true
		}
		m.Mu.Lock()
		m.answers = slices.DeleteFunc(m.answers, func(o *answer) bool { return o == a })
		m.Mu.Unlock()
		if !lost && !a.host.dead {
			m.Note("%s: %s takes the answer to %s", m.elapsed(), a.host.id, a.what)
			a.take()
		}
	}
	return true
}

// finish ends the faults, and checks invariant 6: only the first host survives.
func (m *model) finish() {
	if m.Leader == nil {
		m.elect(m.servers[0])
	}
	m.Recover()
	for i, h := range m.hosts {
		h.paused = false
		if i > 0 {
			m.kill(h)
			m.hosts[i].dead = true // the next host in this place dies before it has registered
		}
	}
	survivor := m.hosts[0]
	if survivor.draining {
		m.leave(survivor)
	}
	for end := m.elapsed() + 10*time.Second; m.elapsed() < end && m.Broken() == ""; m.pass(20 * time.Millisecond) {
		for m.progress(true) {
			m.check()
		}
	}
	for i := range 4 {
		for id := fmt.Sprint(i); survivor.releasing[id] != 0 && m.Broken() == ""; {
			m.release(survivor, id)
			for m.progress(true) {
				m.check()
			}
		}
		m.activate(survivor, fmt.Sprint(i))
		for m.progress(true) {
			m.check()
		}
	}
	left := m.read()
	if len(left.sessions) != 1 || left.sessions[survivor.id] == 0 || len(left.actors) != 4 || len(survivor.owned) != 4 {
		m.Fail("only %s lives and owns %v, and the directory has %+v", survivor.id, survivor.owned, left)
	}
	for id, a := range left.actors {
		if a.Host != survivor.id {
			m.Fail("actor %s belongs to %s", id, a.Host)
		}
	}
}

// play runs one schedule. It returns the first invariant that did not hold, and what has happened.
func play(t *testing.T, seed uint64, steps int, r rules) (broken string, trace []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &model{Group: grouptest.New(t, seed, 3), rules: r, begun: time.Now(), greatest: map[string]uint64{},
			wrote: map[string]uint64{}, born: map[uint64]uint64{},
			moved: map[uint64]bool{}, heard: map[heard]time.Duration{},
			ending: map[heard]bool{}, left: map[string]bool{}}
		m.now = m.read()
		m.Begin, m.Before, m.After = m.called, func(*grouptest.Call) { m.before = m.read() }, m.judge
		for _, s := range m.Members {
			m.servers = append(m.servers, &server{Member: s, model: m})
		}
		for _, s := range m.servers {
			s.open()
		}
		m.elect(m.servers[0])
		for i := range 3 {
			m.hosts = append(m.hosts, nil)
			m.begin(i)
		}
		for i := 0; i < steps && m.Broken() == ""; i++ {
			m.step()
		}
		if m.Broken() == "" {
			m.finish()
		}
		for _, s := range m.servers {
			s.end()
		}
		m.Close()
		broken, trace = m.Broken(), m.Trace()
	})
	return broken, trace
}

func TestModel_KeepsInvariants(t *testing.T) {
	first, n := testutil.Seeds(t, 30)
	for seed := first; seed < first+n; seed++ {
		if broken, trace := play(t, seed, 4000, rules{}); broken != "" {
			t.Fatalf("seed %d: %s\n%s", seed, broken, strings.Join(trace[max(0, len(trace)-80):], "\n"))
		}
	}
}

func TestModel_SeedDecidesEverything(t *testing.T) {
	testutil.SkipUnderRace(t, "the detector chooses goroutines at random, so a seed does not decide the order")
	for seed := range uint64(3) {
		_, first := play(t, seed, 1000, rules{})
		if _, again := play(t, seed, 1000, rules{}); !slices.Equal(first, again) {
			t.Errorf("seed %d plays two schedules", seed)
		}
	}
}

// The model finds hosts that break a rule. Mutants of the Keeper are in cmd/lab/internal/faulttest.
func TestModel_FindsMutants(t *testing.T) {
	testutil.SkipUnderRace(t, "the detector chooses goroutines at random, so a seed does not decide the order")
	mutants := map[string]struct {
		rules rules
		says  string
	}{
		"an activation before the release":      {rules{hasty: true}, "both serve actor"},
		"no fencing":                            {rules{unfenced: true}, "is written with epoch"},
		"a lease that is checked by wall clock": {rules{wall: true}, "valid"},
		"a lease that counts from the answer":   {rules{late: true}, "valid"},
		"a lease longer than the patience":      {rules{lease: 4 * actors.Patience}, "valid"},
	}
	for _, name := range slices.Sorted(maps.Keys(mutants)) {
		const enough = 300 // seeds; the rarest mutant needs 32
		c, found := mutants[name], ""
		// A schedule may break another invariant first.
		for seed := uint64(1); seed < enough && !strings.Contains(found, c.says); seed++ {
			found, _ = play(t, seed, 4000, c.rules)
		}
		if !strings.Contains(found, c.says) {
			t.Errorf("%s: found %q, want %q", name, found, c.says)
		}
	}
}
