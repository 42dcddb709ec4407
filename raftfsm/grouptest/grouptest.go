// Package grouptest simulates a Raft group for model tests of keepers. A keeper is the part of a leader that ends
// locks, places actors or hands out due work. The package owns the simulated group: the log, the servers with their
// replicas, clocks and timers, and the list of calls that the test has to answer.
//
// The state machines and their databases are real. Only Raft is simulated. The test decides which server leads, which
// other servers still believe that they lead, and how far replicas are behind. It also decides the outcome of each
// proposal:
//
//   - applied, or lost
//   - applied without an answer
//   - applied after the caller has given up
//   - applied by the next leader
//
// As with Raft, a committed entry is never removed. A server appends only what it proposed as leader of the current
// term, in the order of its proposals.
//
// Use the package within synctest.Test. The test answers one call at a time, and continues when all goroutines of the
// tested program are waiting. A run is therefore reproducible from its random seed. Only the goroutine of the test may
// call the methods of Group. Any goroutine may call the methods of Member.
package grouptest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// The kinds of calls that Member makes.
const (
	Commit  = "commit"
	Confirm = "confirm"
)

// Call is a call of the tested program that waits until the test answers it.
type Call struct {
	Kind   string // Commit, Confirm, or one of the test
	Member *Member
	Label  string // names what the call is about
	Client any    // the client that makes the call, see WithClient; nil = a keeper
	Data   any    // only the test uses it

	Request *command.Request // of a Commit
	encoded []byte           // the request in bytes, by which Settle orders calls with the same name
	logged  bool             // its entry is in the log
	term    uint64           // term that the server knew when the call began

	reply chan Reply
	gone  bool // the caller has given up; guarded by Group.Mu
}

// Name returns the kind, the server and the label of the call.
func (c *Call) Name() string { return fmt.Sprintf("%s at server %d: %q", c.Kind, c.Member.ID, c.Label) }

// Reply is the answer to a call.
type Reply struct {
	Result   kv.Result
	Position raftlog.Position
	Value    any // for calls whose kind the test defines
	Err      error
}

// Group is a simulated Raft group.
type Group struct {
	T       testing.TB
	Rand    *rand.Rand
	Members []*Member
	Leader  *Member     // the leader of the newest term; nil = none
	Tip     *kv.Machine // has every entry of the log
	Term    uint64
	Elapsed uint64 // milliseconds, which Pass adds; only the test may read it without Mu

	// Begin is called when a call begins, with Mu locked. nil = not called.
	Begin func(c *Call)
	// Changed is called when the role, the due work, the locks or the topics of a server may have changed. nil = not
	// called.
	Changed func(m *Member)
	// Before is called before Tip applies a new entry of the log, and After afterwards. nil = not called.
	Before func(c *Call)
	After  func(c *Call, r kv.Result)

	Mu     sync.Mutex
	gates  []*gate
	calls  []*Call
	log    []kv.Entry
	stamps []uint64 // stamps of the entries in log
	late   []*Call  // proposals of the leader that are in its log and not committed; their callers have given up
	begun  uint64   // number of timers that were started
	trace  []string
	broken string // text of the first Fail
}

// Member is one server of a Group.
type Member struct {
	*Group
	ID int

	// Group.Mu guards the fields below.
	machine *kv.Machine
	applied int    // number of entries of the log that the server has applied
	leads   bool   // as far as the server knows
	term    uint64 // newest term that the server knows
	clocks
}

// New returns a group with the given number of servers, none of which leads. seed determines the random decisions.
func New(t testing.TB, seed uint64, servers int) *Group {
	g := &Group{T: t, Rand: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec // chance, not a secret
	g.Tip = g.machine()
	for i := range servers {
		g.Members = append(g.Members, &Member{Group: g, ID: i + 1, machine: g.machine()})
	}
	return g
}

func (g *Group) machine() *kv.Machine {
	m, err := kv.Create(kv.Options{Dir: "db", FS: vfs.NewMem(), Fatal: func(err error) { g.T.Error(err) }})
	testutil.Must(g.T, err)
	return m
}

// Close closes the state machines. Close the keepers first.
func (g *Group) Close() {
	for _, c := range g.Calls() {
		g.Answer(c, Reply{Err: fault.New(fault.Unavailable, "test", "the end")})
	}
	for _, m := range g.Members {
		testutil.Must(g.T, m.machine.Close())
	}
	testutil.Must(g.T, g.Tip.Close())
}

// Note adds a line to the trace of the test.
func (g *Group) Note(format string, args ...any) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.trace = append(g.trace, fmt.Sprintf(format, args...))
}

// Trace returns the lines that Note has added, oldest first.
func (g *Group) Trace() []string {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return slices.Clone(g.trace)
}

// Fail records that an invariant does not hold. Later calls have no effect.
func (g *Group) Fail(format string, args ...any) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.FailLocked(format, args...)
}

// FailLocked works like Fail, for callers that hold Mu.
func (g *Group) FailLocked(format string, args ...any) {
	if g.broken == "" {
		g.broken = fmt.Sprintf(format, args...)
	}
}

// Broken returns the text that the first Fail has recorded; empty = there was no Fail.
func (g *Group) Broken() string {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return g.broken
}

// Calls returns the calls that wait, in an order that does not depend on chance.
func (g *Group) Calls() []*Call {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return slices.Clone(g.calls)
}

// Waiting works like Calls, for callers that hold Mu. The caller must not change the list.
func (g *Group) Waiting() []*Call { return g.calls }

// gate is a goroutine that waits in Member.Gate.
type gate struct {
	name string
	open chan struct{}
}

// Gate blocks the calling goroutine until the Group releases it, or until closing is closed. The Group releases one
// goroutine at a time, in an order that the seed determines. Call Gate from goroutines that start or wake up at the
// same time. Otherwise their order would depend on the scheduler.
func (m *Member) Gate(ctx context.Context, closing <-chan struct{}, work string) {
	one := &gate{fmt.Sprint(m.ID, " ", work, " ", ctx.Value(clientKey{})), make(chan struct{})}
	m.Mu.Lock()
	m.gates = append(m.gates, one)
	m.Mu.Unlock()
	select {
	case <-one.open:
	case <-closing:
		m.Mu.Lock()
		defer m.Mu.Unlock()
		m.gates = slices.DeleteFunc(m.gates, func(o *gate) bool { return o == one })
	}
}

// wait waits until every goroutine of the tested program waits for an answer. Goroutines at a gate continue one at a
// time.
func (g *Group) wait() {
	for synctest.Wait(); g.next(); synctest.Wait() {
	}
}

// next lets one of the goroutines at gates go on. It returns false if there is none.
func (g *Group) next() bool {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if len(g.gates) == 0 {
		return false
	}
	slices.SortStableFunc(g.gates, func(a, b *gate) int { return cmp.Compare(a.name, b.name) })
	n := g.Rand.IntN(len(g.gates))
	close(g.gates[n].open)
	g.gates = slices.Delete(g.gates, n, n+1)
	return true
}

// Settle waits until every goroutine of the tested program waits for an answer. It then drops the calls that their
// callers have abandoned.
func (g *Group) Settle() {
	g.wait()
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.calls = slices.DeleteFunc(g.calls, func(c *Call) bool { return c.gone })
	slices.SortStableFunc(g.calls, func(a, b *Call) int {
		return cmp.Or(cmp.Compare(a.Name(), b.Name()), bytes.Compare(a.encoded, b.encoded))
	})
}

// Answer sends the answer r to a call. It then waits until the tested program waits for answers again. If c is a
// Confirm, all Confirm calls with the same name get this answer, as in Raft.
func (g *Group) Answer(c *Call, r Reply) {
	g.Mu.Lock()
	var same []*Call
	g.calls = slices.DeleteFunc(g.calls, func(o *Call) bool {
		if o != c && (c.Kind != Confirm || o.Name() != c.Name()) {
			return false
		}
		same = append(same, o)
		return true
	})
	g.Mu.Unlock()
	for _, o := range same {
		o.reply <- r
		g.wait() // otherwise chance decides which caller goes on first
	}
	g.Settle()
}

// Release answers a Commit or a Confirm as a Raft group would. If whole is false, it injects faults at random: the
// call or its answer may be lost, or a proposal may be applied later.
func (g *Group) Release(c *Call, whole bool) {
	leads := c.Member == g.Leader && c.term == g.Term
	if leads && (c.Kind == Commit || g.Rand.IntN(2) == 0) {
		g.commitLate(len(g.late))
	}
	notLeader := Reply{Err: fault.New(fault.NotLeader, "test", "another server leads")}
	fate := g.Rand.IntN(10)
	switch {
	case c.Kind == Confirm && !leads:
		g.Answer(c, notLeader)
	case c.Kind == Confirm && !whole && fate == 0:
		g.Answer(c, Reply{Err: fault.New(fault.Unavailable, "test", "no majority answers")})
	case c.Kind == Confirm:
		g.Answer(c, Reply{Position: g.position()})
	case !leads && (whole || fate < 5):
		g.Answer(c, notLeader)
	case !leads || !whole && fate == 0:
		g.Answer(c, Reply{Err: fault.New(fault.Timeout, "test", "lost")})
	case !whole && fate == 2:
		g.Note("%s gives up, and may be applied later", c.Name())
		g.late = append(g.late, c)
		g.Answer(c, Reply{Err: fault.New(fault.Indeterminate, "test", "not applied in time")})
	default:
		g.Note("%s is applied", c.Name())
		r := Reply{Result: g.commit(c), Position: g.position()}
		c.Member.Apply(len(g.log))
		g.Settle()
		if !whole && fate == 1 {
			r = Reply{Err: fault.New(fault.Indeterminate, "test", "the answer was lost")}
		}
		g.Answer(c, r)
	}
}

// commitLate commits the first count proposals of g.late.
func (g *Group) commitLate(count int) {
	part := g.late[:count]
	g.late = g.late[count:]
	for _, c := range part {
		g.Note("%s is applied late", c.Name())
		g.commit(c)
		g.Leader.Apply(len(g.log))
		g.Settle()
	}
}

// Recover ends the simulated faults. Afterwards all proposals in the leader's log are committed, and every other server
// knows that it does not lead. The group must have a leader.
func (g *Group) Recover() {
	for _, m := range g.Members {
		if m != g.Leader {
			g.Depose(m)
		}
	}
	g.commitLate(len(g.late))
	g.Note("the faults have ended")
}

// Propose commits the request r at the leader, on behalf of the test itself.
func (g *Group) Propose(label string, client any, r *command.Request) kv.Result {
	g.commitLate(len(g.late))
	out := g.commit(&Call{Kind: Commit, Member: g.Leader, Label: label, Client: client, Request: r})
	g.Leader.Apply(len(g.log))
	g.Settle()
	return out
}

func (g *Group) position() raftlog.Position {
	return raftlog.Position{Term: g.Term, Index: uint64(len(g.log))}
}

// Last returns the index of the newest entry.
func (g *Group) Last() uint64 { return uint64(len(g.log)) }

// commit appends the request of c to the log, applies it to Tip, and returns its result.
func (g *Group) commit(c *Call) kv.Result {
	stamp := c.Member.stamp()
	data, err := command.Append(nil, &command.Batch{Stamp: stamp, Requests: []command.Request{*c.Request}})
	testutil.Must(g.T, err)
	if g.Before != nil {
		g.Before(c)
	}
	e := kv.Entry{Index: uint64(len(g.log) + 1), Term: g.Term, Data: data}
	out := g.Tip.Apply([]kv.Entry{e})[0]
	testutil.Must(g.T, out.Err)
	g.Mu.Lock()
	g.log, g.stamps = append(g.log, e), append(g.stamps, stamp)
	c.logged = true
	g.Mu.Unlock()
	if g.After != nil {
		g.After(c, out.Results[0])
	}
	return out.Results[0]
}

// Limbo decides at random what happens to the proposals that the leader has not answered. Some of them are applied, and
// the others never reach the log. Call Limbo before the leader changes or stops.
func (g *Group) Limbo() {
	if len(g.late) > 0 {
		g.commitLate(g.Rand.IntN(len(g.late) + 1))
		g.late = nil
	}
	for _, c := range g.Calls() {
		if c.Kind == Commit && c.Member == g.Leader && c.term == g.Term && !c.logged && g.Rand.IntN(3) == 0 {
			g.Note("%s is applied, without an answer", c.Name())
			g.commit(c)
		}
	}
}

// Elect makes a server the leader. The former leader does not learn of this.
func (g *Group) Elect(m *Member) {
	g.Note("server %d leads", m.ID)
	g.Limbo()
	g.Leader = m
	g.Term++
	m.Apply(len(g.log))
	g.Settle() // otherwise chance decides whether the keeper sees these entries or the new term first
	g.Mu.Lock()
	m.term, m.leads = g.Term, true
	g.Mu.Unlock()
	g.changed(m)
}

// Depose lets a server know that it does not lead.
func (g *Group) Depose(m *Member) {
	g.Note("server %d knows that it does not lead", m.ID)
	g.Mu.Lock()
	m.leads, m.term = false, g.Term
	g.Mu.Unlock()
	g.changed(m)
}

func (g *Group) changed(m *Member) {
	if g.Changed != nil {
		g.Changed(m)
	}
	g.Settle()
}

// End simulates that a server stops. If the server was the leader, the group has no leader afterwards. The test must
// then close the server's keeper and open another one, as after a restart.
func (g *Group) End(m *Member) {
	g.Note("server %d restarts", m.ID)
	if g.Leader == m {
		g.Limbo()
		g.Leader = nil
	}
	g.Mu.Lock()
	defer g.Mu.Unlock()
	m.leads = false
}

// Replace gives a server a new state machine, as if it had received a snapshot. The server first learns that it does
// not lead (see Depose).
func (g *Group) Replace(m *Member) {
	g.Depose(m)
	g.Note("server %d receives a snapshot", m.ID)
	fresh := g.machine()
	g.Mu.Lock()
	old := m.machine
	m.machine, m.applied = fresh, 0
	g.Mu.Unlock()
	m.Apply(len(g.log))
	g.Settle()
	testutil.Must(g.T, old.Close())
}

// BreakReads makes all reads of the server's state machine fail, until the test calls the returned function. Until
// then, the server must not apply entries.
func (m *Member) BreakReads() (repair func()) {
	closed, whole := m.Group.machine(), m.Machine()
	testutil.Must(m.T, closed.Close())
	m.replace(closed)
	return func() { m.replace(whole) }
}

func (m *Member) replace(machine *kv.Machine) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.machine = machine
}

// Apply makes a server apply the entries of the log up to the given index. If one of them has a later term than the
// server knows, the server first stops leading, as in Raft. Its keeper notices this at the next call of Group.Changed.
func (m *Member) Apply(upto int) {
	m.Mu.Lock()
	part, machine := m.log[m.applied:max(upto, m.applied)], m.machine
	if len(part) > 0 && part[len(part)-1].Term > m.term {
		m.leads, m.term = false, part[len(part)-1].Term
	}
	m.Mu.Unlock()
	if len(part) == 0 {
		return
	}
	for i, r := range machine.Apply(slices.Clone(part)) {
		testutil.Must(m.T, r.Err)
		m.observe(m.stamps[part[i].Index-1])
	}
	m.Mu.Lock()
	m.applied += len(part)
	m.Mu.Unlock()
	due, locks, topics := machine.DueChanged(), machine.LocksChanged(), machine.TopicsChanged()
	if (due || locks || topics) && m.Changed != nil {
		m.Changed(m)
	}
}

// CatchUp makes a server apply a random number of the entries that it does not have.
func (m *Member) CatchUp() {
	m.Apply(m.applied + m.Rand.IntN(len(m.log)-m.applied+1))
	m.Settle()
}

// Leading reports whether this server leads, as far as it knows.
func (m *Member) Leading() bool {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	return m.leads
}

// LeadingLocked works like Leading, for callers that hold Mu.
func (m *Member) LeadingLocked() bool { return m.leads }

// Term returns the newest term that this server knows.
func (m *Member) Term() uint64 {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	return m.term
}

// Machine returns the replica of this server.
func (m *Member) Machine() *kv.Machine {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	return m.machine
}

type clientKey struct{}

// WithClient returns a context for calls that the given client makes (see Call.Client).
func WithClient(ctx context.Context, client any) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// Propose proposes r, and waits until the test has decided the outcome.
func (m *Member) Propose(ctx context.Context, r *command.Request) (kv.Result, raftlog.Position, error) {
	encoded, err := command.Append(nil, &command.Batch{Stamp: 1, Requests: []command.Request{*r}})
	if err != nil {
		return kv.Result{}, raftlog.Position{}, err
	}
	label := "(no operation)"
	if len(r.Ops) > 0 {
		label = r.Ops[0].Key
	}
	out := m.Wait(ctx, &Call{Kind: Commit, Label: label, Request: r, encoded: encoded})
	return out.Result, out.Position, out.Err
}

// Ask waits until the test decides whether a majority of the servers confirms that this server leads. If so, it returns
// a log position, and otherwise an error.
func (m *Member) Ask(ctx context.Context) (raftlog.Position, error) {
	out := m.Wait(ctx, &Call{Kind: Confirm})
	return out.Position, out.Err
}

// Wait makes a call, waits until the test answers it, and returns the answer. If ctx ends first, the returned Reply has
// an error.
func (m *Member) Wait(ctx context.Context, c *Call) Reply {
	c.Member, c.Client, c.reply = m, ctx.Value(clientKey{}), make(chan Reply, 1)
	if c.Client != nil {
		c.Label = fmt.Sprint(c.Client, " ", c.Label)
	}
	m.Mu.Lock()
	c.term = m.term
	if m.Begin != nil {
		m.Begin(c)
	}
	m.calls = append(m.calls, c)
	m.Mu.Unlock()
	select {
	case r := <-c.reply:
		return r
	case <-ctx.Done():
		m.Mu.Lock()
		defer m.Mu.Unlock()
		c.gone = true
		return Reply{Err: fault.Wrap(ctx.Err(), "test", "given up")}
	}
}
