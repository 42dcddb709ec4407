package workflows

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/kv"
)

// This file plays random schedules with the Keepers of three servers and two nodes with workers, and checks these
// invariants:
//
//  1. An instance whose start was acknowledged completes with the exact result after the faults have ended. The timers
//     of the Keeper suffice for that.
//  2. The history of an instance only grows, except when it continues as new, and never has two results of one
//     activity, timer or child. The result of an activity is one that a node has returned.
//  3. A node gets an activity only if no stream of another node has the activity. A stream ends with its node, or when
//     the node has no proof for proofLife that the leader knows the node.
//  4. An event whose raise was acknowledged is in the history once.
//
// The Keepers, the rules of turns, the state machines and their databases are real. Package grouptest says what the
// schedule decides. Here the schedule also decides what nodes do and when, how wrong wall clocks are, and the time.
type model struct {
	*grouptest.Group
	servers []*server
	nodes   []*node
	seed    uint64
	begun   int // number of instances that clients have started
	joins   int // number of sessions that nodes have begun

	// Group.Mu guards the fields below.
	chance  uint64
	starts  map[Ref]*modelStart
	results map[string]bool // results of activities that nodes have returned: instance, task, result
	before  map[Ref][]string
}

// modelStart is an instance that a client starts.
type modelStart struct {
	kind     string
	calling  bool
	acked    bool
	raising  bool
	raised   bool
	err      error // of the newest call
	entrance *creation
}

// node is a node with one stream.
type node struct {
	id, life int
	session  string
	previous string
	joined   bool
	pulling  bool
	calling  int
	received uint64
	proof    uint64
	held     []*item
	from     map[*item]string // session from which each item of held came
	again    []*answered      // answers whose call has failed
	refused  error            // error of the newest answer in again
	sending  []*answered      // answers whose call is under way
}

// answered is the answer of a worker.
type answered struct {
	*item
	session string
	data    []byte
}

func (n *node) String() string { return fmt.Sprintf("node %d.%d", n.id, n.life) }

const modelApp = "shop"

// expected are the outputs of the workflows, by their names.
var expected = map[string]string{"chain": "3", "fan": "6", "timer": "fired", "event": "raised", "child": "6",
	"again": "over", "later": "started"}

// modelTurn is the code of the workflows. It returns the actions of a turn with these events.
func modelTurn(events []*protos.HistoryEvent) (actions []*protos.WorkflowAction) {
	var name, input string
	scheduled, done, sum, raised, fired := 0, 0, 0, 0, false
	add := func(text string) {
		n, _ := strconv.Atoi(text)
		done, sum = done+1, sum+n
	}
	for _, e := range events {
		switch {
		case e.GetExecutionStarted() != nil:
			name, input = e.GetExecutionStarted().GetName(), e.GetExecutionStarted().GetInput().GetValue()
		case e.GetTaskScheduled() != nil, e.GetTimerCreated() != nil, e.GetChildWorkflowInstanceCreated() != nil:
			scheduled++
		case e.GetTaskCompleted() != nil:
			add(e.GetTaskCompleted().GetResult().GetValue())
		case e.GetChildWorkflowInstanceCompleted() != nil:
			add(e.GetChildWorkflowInstanceCompleted().GetResult().GetValue())
		case e.GetTimerFired() != nil:
			fired = true
		case e.GetEventRaised() != nil:
			raised++
		}
	}
	next := func(a *protos.WorkflowAction) {
		a.Id = int32(scheduled) //nolint:gosec // few
		scheduled++
		actions = append(actions, a)
	}
	end := func(status protos.OrchestrationStatus, result string) {
		next(&protos.WorkflowAction{WorkflowActionType: &protos.WorkflowAction_CompleteWorkflow{
			CompleteWorkflow: &protos.CompleteWorkflowAction{WorkflowStatus: status,
				Result: wrapperspb.String(result)}}})
	}
	completed := protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED
	task := func() {
		next(&protos.WorkflowAction{WorkflowActionType: &protos.WorkflowAction_ScheduleTask{
			ScheduleTask: &protos.ScheduleTaskAction{Name: "add", Input: wrapperspb.String(strconv.Itoa(scheduled))}}})
	}
	switch {
	case name == "chain" && done == 2, name == "fan" && done == 3, name == "child" && done == 2:
		end(completed, strconv.Itoa(sum))
	case name == "chain" && done == scheduled:
		task()
	case name == "fan" && scheduled == 0:
		task()
		task()
		task()
	case name == "timer" && fired:
		end(completed, "fired")
	case name == "timer" && scheduled == 0:
		at := timestamppb.New(time.UnixMilli(int64(grouptest.Epoch) + 1000))
		next(&protos.WorkflowAction{WorkflowActionType: &protos.WorkflowAction_CreateTimer{
			CreateTimer: &protos.CreateTimerAction{FireAt: at}}})
	case name == "event" && raised > 0:
		end(completed, "raised")
	case name == "child" && scheduled == 0:
		for range 2 {
			next(&protos.WorkflowAction{WorkflowActionType: &protos.WorkflowAction_CreateChildWorkflow{
				CreateChildWorkflow: &protos.CreateChildWorkflowAction{Name: "chain"}}})
		}
	case name == "later":
		end(completed, "started")
	case name == "again" && input == "2":
		end(completed, "over")
	case name == "again":
		n, _ := strconv.Atoi(input)
		end(protos.OrchestrationStatus_ORCHESTRATION_STATUS_CONTINUED_AS_NEW, strconv.Itoa(n+1))
	}
	return actions
}

// histories reads the events of all instances from a state machine. Each event is a text.
func (m *model) histories(of *kv.Machine) map[Ref][]string {
	out := map[Ref][]string{}
	found, _, err := of.Records(kv.WorkflowStore, "", "", 100_000, 1<<30, 0)
	testutil.Must(m.T, err)
	for n := range found {
		r, table, _, ok := instanceOf(found[n].Key)
		if !ok || table != tableChunk {
			continue
		}
		raws, ok := readEvents(found[n].Value)
		if !ok {
			m.Fail("a part of the history of %s cannot be read", r.ID)
		}
		for _, raw := range raws {
			e, err := decodeEvent(raw)
			testutil.Must(m.T, err)
			text := string(raw)
			switch {
			case e.GetTaskCompleted() != nil:
				text = fmt.Sprint("task ", e.GetTaskCompleted().GetTaskScheduledId(), " ",
					e.GetTaskCompleted().GetResult().GetValue())
			case e.GetTimerFired() != nil:
				text = fmt.Sprint("timer ", e.GetTimerFired().GetTimerId())
			case e.GetChildWorkflowInstanceCompleted() != nil:
				text = fmt.Sprint("child ", e.GetChildWorkflowInstanceCompleted().GetTaskScheduledId())
			case e.GetEventRaised() != nil:
				text = fmt.Sprint("event ", e.GetEventRaised().GetName())
			}
			out[r] = append(out[r], text)
		}
	}
	return out
}

// judge checks the invariants on what a log entry has changed.
func (m *model) judge(c *grouptest.Call, _ kv.Result) {
	before, now := m.before, m.histories(m.Tip)
	m.Mu.Lock()
	defer m.Mu.Unlock()
	for r, events := range now {
		was := before[r]
		kind := ""
		if s := m.starts[r]; s != nil {
			kind = s.kind
		}
		if kind != "again" && (len(was) > len(events) || !slices.Equal(was, events[:len(was)])) {
			m.FailLocked("%s: the history of %s has changed", c.Name(), r.ID)
		}
		seen := map[string]bool{}
		for _, e := range events {
			what, rest, _ := strings.Cut(e, " ")
			if what != "task" && what != "timer" && what != "child" && what != "event" {
				continue
			}
			id, _, _ := strings.Cut(rest, " ")
			if seen[what+id] {
				m.FailLocked("%s: the history of %s has two results: %s", c.Name(), r.ID, e)
			}
			seen[what+id] = true
			if what == "task" && !m.results[r.ID+" "+rest] {
				m.FailLocked("%s: the history of %s has a result that no node has returned: %s", c.Name(), r.ID, e)
			}
		}
	}
}

// at returns a server: mostly the leader.
func (m *model) at() *server {
	if m.Leader != nil && m.Rand.IntN(5) > 0 {
		return m.server(m.Leader)
	}
	return m.servers[m.Rand.IntN(len(m.servers))]
}

// client starts an instance, raises an event, or repeats such a call after an error. If fresh is true, it may begin
// another instance. It returns false if there was nothing to do.
func (m *model) client(s *server, fresh bool) bool {
	m.Mu.Lock()
	refs := slices.SortedFunc(maps.Keys(m.starts), compareRefs)
	m.Mu.Unlock()
	k := s.keeper
	for _, r := range refs {
		one := m.starts[r]
		m.Mu.Lock()
		start, raise := !one.acked && !one.calling, one.acked && one.kind == "event" && !one.raised && !one.raising
		one.calling, one.raising = one.calling || start, one.raising || raise
		m.Mu.Unlock()
		ctx := grouptest.WithClient(m.T.Context(), r.ID)
		switch {
		case start:
			go func() {
				err := k.start(ctx, r, &creation{event: proto.CloneOf(one.entrance.event),
					startAt: one.entrance.startAt})
				m.Mu.Lock()
				defer m.Mu.Unlock()
				one.calling = false
				if one.acked = one.acked || err == nil; err != nil {
					one.err = err
				}
			}()
		case raise:
			go func() {
				err := k.event(ctx, r, turn.Raised("go", nil, time.Time{}), hash(r.ID))
				m.Mu.Lock()
				defer m.Mu.Unlock()
				one.raising = false
				one.raised = one.raised || err == nil
			}()
		default:
			continue
		}
		m.Group.Settle()
		return true
	}
	if fresh && m.begun < 8 {
		m.begun++
		kinds := slices.Sorted(maps.Keys(expected))
		m.start(kinds[m.Rand.IntN(len(kinds))])
		return true
	}
	return false
}

func (m *model) start(kind string) Ref {
	r := Ref{modelApp, fmt.Sprintf("%s-%d", kind, m.begun)}
	e := turn.Start(&protos.CreateInstanceRequest{InstanceId: r.ID, Name: kind}, "execution-"+r.ID,
		time.UnixMilli(int64(grouptest.Epoch)))
	m.Mu.Lock()
	defer m.Mu.Unlock()
	entrance := &creation{event: e}
	if kind == "later" {
		entrance.startAt = time.UnixMilli(int64(grouptest.Epoch) + 1000)
	}
	m.starts[r] = &modelStart{kind: kind, entrance: entrance}
	return r
}

// lapse ends the stream of a node that has no proof that the leader knows it.
func (m *model) lapse(n *node) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.Elapsed-n.proof > uint64(proofLife.Milliseconds()) && slices.ContainsFunc(n.held, isTask) {
		n.held = slices.DeleteFunc(n.held, isTask)
		n.joined, n.session = false, "" // the stream has ended, and another stream begins
	}
}

func isTask(i *item) bool { return i.kind == itemTask }

func (m *model) join(n *node, s *server) {
	m.lapse(n)
	if n.session == "" {
		m.Mu.Lock()
		n.session = fmt.Sprintf("session-%d-%d-%d", n.id, n.life, m.joins)
		m.joins++
		m.Mu.Unlock()
	}
	j := &Join{Session: n.session, Previous: n.previous, Streams: map[uint64]string{1: modelApp}}
	for _, i := range n.held {
		j.Held = append(j.Held, heldOf(i)...)
	}
	for _, list := range [][]*answered{n.again, n.sending} {
		for _, a := range list {
			j.Held = append(j.Held, heldOf(a.item)...)
		}
	}
	n.calling++
	k, begun, until := s.keeper, m.Elapsed, m.Elapsed+uint64(proofLife.Milliseconds())
	if slices.ContainsFunc(n.held, isTask) {
		until = n.proof + uint64(proofLife.Milliseconds())
	}
	ctx := grouptest.WithClient(m.T.Context(), n)
	go func() {
		err := k.Join(ctx, j)
		m.Mu.Lock()
		defer m.Mu.Unlock()
		if n.calling--; err == nil && m.Elapsed <= until { // otherwise the node has given up
			n.joined, n.received, n.previous, n.proof = true, 0, n.session, begun
		}
	}()
	m.Group.Settle()
}

func heldOf(i *item) []Held {
	if i.kind != itemTask {
		return nil
	}
	return []Held{{Stream: 1, App: i.ref.App, ID: i.ref.ID, Task: i.task, Birth: i.birth, Attempt: i.number}}
}

// pull begins a pull, and checks what it returns.
func (m *model) pull(n *node, s *server) {
	m.lapse(n)
	n.pulling = true
	k, received, session, begun := s.keeper, n.received, n.session, m.Elapsed
	ctx := grouptest.WithClient(m.T.Context(), n)
	go func() {
		a, known, err := k.pull(ctx, session, received)
		m.Mu.Lock()
		defer m.Mu.Unlock()
		n.pulling = false
		if err == nil && !known {
			n.joined, n.session = false, ""
		}
		late := m.Elapsed-begun > uint64((proofLife - pullPatience).Milliseconds())
		if err != nil || late { // a late answer comes after the deadline of the call
			return
		}
		if a.proven {
			n.proof = begun
		}
		if a.number != 0 {
			n.received = a.number
		}
		for _, i := range a.items {
			m.delivered(n, s, i)
		}
	}()
	m.Group.Settle()
}

// delivered checks an item that a pull has returned. The caller holds Mu.
func (m *model) delivered(n *node, s *server, i *item) {
	same := func(o *item) bool {
		return o.kind == itemTask && o.ref == i.ref && o.task == i.task && o.birth == i.birth
	}
	if i.kind == itemTask {
		for _, o := range m.nodes {
			if o != n && m.Elapsed-o.proof <= uint64(proofLife.Milliseconds()) && slices.ContainsFunc(o.held, same) {
				m.FailLocked("server %d gives activity %d of %s to %s while %s has it", s.ID, i.task, i.ref.ID, n, o)
			}
		}
		if slices.ContainsFunc(n.held, same) {
			return
		}
	}
	n.held = append(n.held, i)
	if n.from == nil {
		n.from = map[*item]string{}
	}
	n.from[i] = n.session
}

// work answers an item that a node has, or repeats a call that has failed.
func (m *model) work(n *node, s *server) bool {
	m.lapse(n)
	var a *answered
	switch {
	case len(n.again) > 0:
		a = n.again[0]
		n.again = n.again[1:]
	case len(n.held) == 0:
		return false
	default:
		at := m.Rand.IntN(len(n.held))
		i := n.held[at]
		n.held = slices.Delete(n.held, at, at+1)
		a = &answered{item: i, session: n.from[i], data: m.answer(i)}
	}
	n.sending = append(n.sending, a)
	c := &call{what: callTurn, session: a.session, ref: a.ref, b: a.number, data: a.data}
	if a.kind == itemTask {
		c = &call{what: callTask, session: n.session, ref: a.ref, b: a.birth, c: a.number, d: bits(a.task),
			data: a.data}
	}
	k := s.keeper
	ctx := grouptest.WithClient(m.T.Context(), n)
	go func() {
		_, err := k.complete(ctx, c)
		m.Mu.Lock()
		defer m.Mu.Unlock()
		n.sending = slices.DeleteFunc(n.sending, func(o *answered) bool { return o == a })
		if err != nil {
			n.again, n.refused = append(n.again, a), err
			slices.SortStableFunc(n.again, compareAnswers) // many calls may fail at once
		}
	}()
	m.Group.Settle()
	return true
}

func compareAnswers(a, b *answered) int {
	return cmp.Or(compareRefs(a.ref, b.ref), cmp.Compare(a.kind, b.kind), cmp.Compare(a.task, b.task),
		cmp.Compare(a.number, b.number), cmp.Compare(a.session, b.session))
}

// answer executes an item as a worker does, and returns the encoded answer.
func (m *model) answer(i *item) []byte {
	var events []*protos.HistoryEvent
	for _, raw := range append(slices.Clone(i.past), i.fresh...) {
		e, err := decodeEvent(raw)
		testutil.Must(m.T, err)
		events = append(events, e)
	}
	var out proto.Message
	if i.kind == itemTurn {
		out = &protos.WorkflowResponse{InstanceId: i.ref.ID, Actions: modelTurn(events)}
	} else {
		n, _ := strconv.Atoi(events[0].GetTaskScheduled().GetInput().GetValue())
		out = &protos.ActivityResponse{InstanceId: i.ref.ID, TaskId: i.task,
			Result: wrapperspb.String(strconv.Itoa(n + 1))}
		m.Mu.Lock()
		m.results[fmt.Sprint(i.ref.ID, " ", i.task, " ", n+1)] = true
		m.Mu.Unlock()
	}
	data, err := proto.Marshal(out)
	testutil.Must(m.T, err)
	return data
}

// act lets a node join or pull. It returns false if the node does neither.
func (m *model) act(n *node, s *server) bool {
	switch {
	case !n.joined && n.calling == 0:
		m.join(n, s)
	case n.joined && !n.pulling:
		m.pull(n, s)
	default:
		return false
	}
	return true
}

// step plays one random step of the schedule.
func (m *model) step() {
	s := m.servers[m.Rand.IntN(len(m.servers))]
	n := m.nodes[m.Rand.IntN(len(m.nodes))]
	switch what := m.Rand.IntN(100); {
	case what < 38:
		if calls := m.Calls(); len(calls) > 0 {
			m.Release(calls[m.Rand.IntN(len(calls))], false)
		}
	case what < 44:
		m.Pass(m.Rand.Uint64N(20))
	case what < 47:
		if d, any := m.NextTimer(); any {
			m.Pass(min(d, 3000))
		}
	case what < 54:
		m.client(m.at(), true)
	case what < 70:
		m.act(n, m.at())
	case what < 88:
		m.work(n, m.at())
	case what < 93:
		s.CatchUp()
	case what < 94:
		m.restart(s)
	case what < 95: // a node restarts
		if !n.pulling && n.calling == 0 && len(n.sending) == 0 {
			m.Note("%s restarts", n)
			m.nodes[n.id-1] = &node{id: n.id, life: n.life + 1}
		}
	case s.Member == m.Leader:
	case what < 97:
		m.Elect(s.Member)
	case what < 99:
		m.Depose(s.Member)
	default:
		m.Replace(s.Member)
	}
}

// over returns the id of an instance that has not ended, or "" if all instances have ended. It fails the model if an
// instance has a wrong output.
func (m *model) over() (left string) {
	refs := slices.SortedFunc(maps.Keys(m.starts), compareRefs)
	for _, r := range refs {
		h, found, err := readHeadOf(m.Tip, r)
		testutil.Must(m.T, err)
		if !found || !terminal(h.status) {
			return r.ID
		}
		s, err := stateOf(m.Tip, r, &h, true)
		testutil.Must(m.T, err)
		if s.GetOutput().GetValue() != expected[m.starts[r].kind] {
			m.Fail("%s has the output %q", r.ID, s.GetOutput().GetValue())
		}
	}
	return ""
}

// finish ends the faults, and requires that every instance completes.
func (m *model) finish() {
	if m.Leader == nil {
		m.Elect(m.Members[0])
	}
	m.Recover()
	lead := m.server(m.Leader)
	for range 20_000 {
		if m.Broken() != "" {
			return
		}
		if calls := m.Calls(); len(calls) > 0 {
			m.Release(calls[0], true)
			continue
		}
		if m.over() == "" {
			return
		}
		busy := m.client(lead, false)
		for _, n := range m.nodes {
			busy = m.work(n, lead) || busy
			busy = m.act(n, lead) || busy
		}
		if busy {
			m.Pass(1) // answers may be refused until an event is stored
			continue
		}
		d, any := m.NextTimer()
		if !any {
			m.dump(lead)
			m.Fail("nothing drives %s", m.over())
			return
		}
		m.Pass(max(d, 1))
	}
	m.dump(lead)
	found, _, _ := m.Tip.Records(kv.WorkflowStore, "", "", 100_000, 1<<30, 0)
	for n := range found {
		if strings.Contains(found[n].Key, m.over()) {
			m.Note("%q", found[n].Key)
			if raws, ok := readEvents(found[n].Value); ok && found[n].Key[7] == tableChunk {
				for _, raw := range raws {
					e, _ := decodeEvent(raw)
					m.Note("%v", e)
				}
			}
		}
	}
	for r, one := range m.starts {
		m.Note("%s: acked %t, calling %t, raised %t: %v", r.ID, one.acked, one.calling, one.raised, one.err)
	}
	m.Fail("%s does not complete", m.over())
}

// play plays a schedule. It returns the first invariant that did not hold, and what has happened.
func play(t *testing.T, seed uint64, schedule func(m *model)) (broken string, trace []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &model{Group: grouptest.New(t, seed, 3), seed: seed, starts: map[Ref]*modelStart{},
			results: map[string]bool{}, nodes: []*node{{id: 1}, {id: 2}}}
		m.Before, m.After = func(*grouptest.Call) { m.before = m.histories(m.Tip) }, m.judge
		m.Changed = func(s *grouptest.Member) { m.server(s).keeper.Update() }
		for _, s := range m.Members {
			m.servers = append(m.servers, &server{Member: s, model: m})
		}
		for _, s := range m.servers {
			s.open()
		}
		m.Group.Settle()
		m.Elect(m.Members[0])
		schedule(m)
		m.finish()
		for _, s := range m.servers {
			s.keeper.Close()
		}
		m.Group.Settle()
		m.Close()
		broken, trace = m.Broken(), m.Trace()
	})
	return broken, trace
}

func check(t *testing.T, what string, broken string, trace []string) {
	t.Helper()
	if broken != "" {
		t.Fatalf("%s: %s\n%s", what, broken, strings.Join(trace[max(0, len(trace)-60):], "\n"))
	}
}

func TestModel_KeepsInvariants(t *testing.T) {
	first, n := testutil.Seeds(t, 40)
	for seed := first; seed < first+n; seed++ {
		broken, trace := play(t, seed, func(m *model) {
			for i := 0; i < 700 && m.Broken() == ""; i++ {
				m.step()
			}
		})
		check(t, fmt.Sprint("seed ", seed), broken, trace)
	}
}

// A seed decides everything that happens, so a schedule that has found a bug can be played again.
func TestModel_IsDecidedBySeed(t *testing.T) {
	first, n := testutil.Seeds(t, 10)
	for seed := first; seed < first+n; seed++ {
		var traces [2][]string
		for i := range traces {
			_, traces[i] = play(t, seed, func(m *model) {
				for i := 0; i < 700; i++ {
					m.step()
				}
				found, _, err := m.Tip.Records(kv.WorkflowStore, "", "", 100_000, 1<<30, 0)
				testutil.Must(t, err)
				for n := range found {
					m.Note("%q is %x", found[n].Key, found[n].Value)
				}
			})
		}
		for n := range min(len(traces[0]), len(traces[1])) {
			if a, b := traces[0][n], traces[1][n]; a != b {
				t.Fatalf("seed %d differs after:\n%s\nfirst: %s\nthen:  %s", seed,
					strings.Join(traces[0][max(0, n-20):n], "\n"), a, b)
			}
		}
		if len(traces[0]) != len(traces[1]) {
			t.Fatalf("seed %d has %d and %d steps", seed, len(traces[0]), len(traces[1]))
		}
	}
}

// advance plays a schedule without faults until enough returns true. It returns false if all workflows have ended or
// an invariant was broken before.
func (m *model) advance(enough func() bool) bool {
	for range 3000 {
		switch {
		case m.Broken() != "":
			return false
		case enough():
			return true
		case len(m.starts) > 0 && m.over() == "":
			return false
		}
		if calls := m.Calls(); len(calls) > 0 {
			m.Release(calls[0], true)
			continue
		}
		busy := m.client(m.server(m.Leader), false)
		for _, n := range m.nodes {
			busy = m.act(n, m.server(m.Leader)) || m.work(n, m.server(m.Leader)) || busy
		}
		if d, any := m.NextTimer(); !busy && any {
			m.Pass(max(d, 1))
		}
	}
	m.Fail("%s does not go on", m.over())
	return false
}

// succeed makes the next server lead. If kill is true, the old leader ends and starts again. Otherwise the old leader
// does not learn that it was deposed.
func (m *model) succeed(kill bool) {
	was := m.server(m.Leader)
	if kill {
		m.restart(was)
	}
	m.Elect(m.Members[was.ID%len(m.Members)])
}

// For each entry of a workflow of every kind, another server becomes leader after that entry. The old leader is
// killed, or is deposed without knowing it. The proposal of the next entry, or its answer, may be lost.
func TestModel_LeaderChangesBetweenEntries(t *testing.T) {
	for _, kind := range slices.Sorted(maps.Keys(expected)) {
		for _, kill := range []bool{true, false} {
			for cut, more := uint64(0), true; more; cut++ {
				broken, trace := play(t, cut, func(m *model) {
					m.start(kind)
					if more = m.advance(func() bool { return m.Last() >= cut }); more {
						m.succeed(kill)
					}
				})
				what := fmt.Sprintf("%s with a new leader after entry %d (killed: %t)", kind, cut, kill)
				check(t, what, broken, trace)
				if !more && cut < 6 {
					t.Errorf("%s has ended after %d entries", kind, cut)
				}
			}
		}
	}
}

// The leader is killed after every entry of a workflow, for every kind of workflow. So no leader makes two steps of
// the same workflow.
func TestModel_LeaderIsKilledAfterEveryEntry(t *testing.T) {
	for _, kind := range slices.Sorted(maps.Keys(expected)) {
		for seed := range uint64(5) {
			kills := 0
			broken, trace := play(t, seed, func(m *model) {
				r := m.start(kind)
				revision := func() uint64 {
					h, _, err := readHeadOf(m.Tip, r)
					testutil.Must(t, err)
					return h.revision
				}
				for known := uint64(0); m.advance(func() bool { return revision() != known }); kills++ {
					known = revision()
					m.succeed(true)
				}
			})
			check(t, fmt.Sprintf("%s, seed %d, after %d kills", kind, seed, kills), broken, trace)
			if kills < 3 {
				t.Errorf("%s: the leader was killed %d times", kind, kills)
			}
		}
	}
}
