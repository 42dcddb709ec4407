package topics

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// This file plays random schedules with the Keepers of three servers and two nodes that receive messages, and checks
// these invariants:
//
//  1. A message that a group has settled in the log was acknowledged or moved by a node before. So nothing that is not
//     acknowledged is lost.
//  2. After every entry: a message has at most one dead letter of a group. It has one if and only if the group has
//     settled the message in this way.
//  3. A pull returns no message that was settled in the log before the pull began.
//  4. A message is delivered only after all earlier messages with its key were acknowledged or moved. In a group with
//     concurrency 1, only after all earlier ones. Messages that their publisher has delayed hold up none.
//  5. A message is not delivered before its time, nor before the time of its next attempt that the log has. Its number
//     of attempts is at least that of the log, and at most one more than the failures that nodes have reported. An
//     entry adds only attempts that have failed: several if it stores several failures of a message.
//  6. Retention removes no message that a group has not settled.
//  7. At most one transaction that acknowledges a message is applied, and only if the group has not settled the
//     message before. Such a message is no dead letter.
//  8. The group brief has a time to live. It ends only if its record says that it was not used for that time, or if
//     an operator has removed it. Its settled messages come again only after its end or after a replay by an operator.
//     A group that has ended leaves no parked records. After a removal by an operator, they may stay until the group
//     begins again.
//  9. When the faults have ended, every message is settled in every group, with the Keeper's own timers only.
//
// The Keepers, the state machines and their databases are real. Package grouptest says what the schedule decides.
// Here the schedule also decides what nodes do and when, how wrong wall clocks are, and the time. With odd seeds, a
// group may have few messages open, so that messages behind failing ones leave the memory of the leader. A seed always
// plays the same schedule: TestModel_SeedDecidesEverything checks that. testutil.Seeds says how to play other seeds.
type model struct {
	*grouptest.Group
	servers []*server
	nodes   []*node
	sent    int // messages published
	most    int // messages that a group may have open; 0 = the usual number
	before  view

	// Group.Mu guards the fields below.
	acked   map[place]bool   // an acknowledgement was begun
	moved   map[place]bool   // a move to the dead letters was begun
	claimed map[place]bool   // a transaction with an acknowledgement was begun
	fails   map[place]uint64 // failures that were reported
	keys    map[uint64]string
	times   map[uint64]uint64 // when a message may be delivered
	ids     map[string]uint64 // offsets of the messages, by their ids
	acts    int               // number of operations on the group brief that operators have begun
}

// place is a message of a group.
type place struct {
	group  string
	offset uint64
}

// ledger is a state store in which each transaction appends a record.
const ledger = "ns/statestore"

func (p place) ledgerKey() string { return fmt.Sprintf("app||%s/%d/", p.group, p.offset) }

// node is a node that receives messages.
type node struct {
	id       int
	life     int
	pulling  bool
	calling  int
	joined   bool
	brief    bool // the node has joined the group brief
	received uint64
	held     []hold
	again    []Settle // settlements whose call returned an error, to be repeated
}

// hold is a delivery that a node has not settled.
type hold struct {
	place
	attempt uint64
	lease   uint64
	proof   string
}

func (n *node) String() string { return fmt.Sprintf("node %d.%d", n.id, n.life) }

var (
	orders = Topic{Store: "ns/pubsub", Name: "orders"}
)

const (
	loose  = "loose"  // a group that keeps the order of each key
	strict = "strict" // a group with concurrency 1
	brief  = "brief"  // a group with a time to live, which nodes join and leave, and which operators change

	briefLife = 5 * time.Second
)

// groups returns the names of the groups. The id of a subscription to a group is the index of the group plus 1.
func groups() []string { return []string{loose, strict, brief} }

// over reports whether a node has begun to acknowledge a message or to move it to the dead letters. The caller holds
// Mu.
func (m *model) over(p place) bool { return m.acked[p] || m.moved[p] }

// dead returns the topic with the dead letters of a group.
func dead(group string) Topic { return Topic{Store: orders.Store, Name: "dead-" + group} }

// view is the state of the messages and groups according to the log.
type view struct {
	messages map[uint64]bool
	settled  map[place]bool
	parked   map[place]parked
	groups   []string
	brief    cursor        // of the group brief, if there is one
	letters  map[place]int // how many dead letters come from a message
	written  map[place]int // how many transactions have acknowledged a message
}

// allSettled reports whether at least two groups exist and every group has settled every message of the topic.
func (v *view) allSettled() bool {
	for offset := range v.messages {
		for _, group := range v.groups {
			if !v.settled[place{group, offset}] {
				return false
			}
		}
	}
	return len(v.groups) >= 2
}

// look reads the view from a state machine.
func (m *model) look(of *kv.Machine) (v view) {
	v = view{map[uint64]bool{}, map[place]bool{}, map[place]parked{}, nil, cursor{}, map[place]int{},
		map[place]int{}}
	must := func(err error) { testutil.Must(m.T, err) }
	found, _, err := of.Records(kv.TopicStore, orders.key(tableMessage, ""), "", 10_000, 1<<30, 0)
	must(err)
	for _, r := range found {
		v.messages[offsetOf(r.Key)] = true
	}
	for _, group := range groups() {
		record, err := of.Get(kv.TopicStore, orders.key(tableGroup, group), 0)
		must(err)
		if !record.Found {
			rest, _, err := of.List(kv.TopicStore, orders.parkedPrefix(group), "", 1, 0)
			must(err)
			if len(rest) > 0 && !m.hasOperatorActed() { // a removal takes several entries
				m.Fail("group %s has ended, and has a parked message", group)
			}
			continue
		}
		v.groups = append(v.groups, group)
		c, ok := readCursor(record.Value, record.Revision)
		if !ok {
			m.Fail("the cursor of %s cannot be read", group)
		}
		if group == brief {
			v.brief = c
		}
		waiting, _, err := of.Records(kv.TopicStore, orders.parkedPrefix(group), "", 10_000, 1<<30, 0)
		must(err)
		for _, r := range waiting {
			p, ok := readParked(r.Value)
			if !ok {
				m.Fail("a parked record of %s cannot be read", group)
			}
			v.parked[place{group, offsetOf(r.Key)}] = p
		}
		for offset := range m.keys {
			_, later := v.parked[place{group, offset}]
			if offset <= c.upto && !later && !slices.Contains(c.open, offset) {
				v.settled[place{group, offset}] = true
			}
		}
		for offset := range m.keys {
			p := place{group, offset}
			written, _, err := of.List(ledger, p.ledgerKey(), "", 10, 0)
			must(err)
			v.written[p] = len(written)
		}
		letters, _, err := of.Records(kv.TopicStore, dead(group).key(tableMessage, ""), "", 10_000, 1<<30, 0)
		must(err)
		for _, r := range letters {
			msg, ok := decodeMessage(r.Value)
			if !ok {
				m.Fail("a dead letter cannot be read")
			}
			v.letters[place{group, m.ids[msg.ID]}]++
		}
	}
	return v
}

// hasOperatorActed reports whether an operator has begun to do something with the group brief.
func (m *model) hasOperatorActed() bool {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	return m.acts > 0
}

// judge checks the invariants on what a log entry has changed.
func (m *model) judge(c *grouptest.Call, _ kv.Result) {
	before, now := m.before, m.look(m.Tip)
	m.Mu.Lock()
	defer m.Mu.Unlock()
	for p := range now.settled {
		if !before.settled[p] && !m.over(p) && before.messages[p.offset] {
			m.FailLocked("%s: message %d is settled in group %s, and no node has acknowledged it", c.Name(), p.offset,
				p.group)
		}
	}
	ended := slices.Contains(before.groups, brief) && !slices.Contains(now.groups, brief)
	b := &before.brief
	if now := m.leaderTime(); ended && m.acts == 0 && now < b.used+b.ttl+useStep(b.ttl) {
		m.FailLocked("%s: group %s ends at %d, and was used at %d", c.Name(), brief, now, b.used)
	}
	for p := range before.settled {
		if again := p.group == brief && (ended || m.acts > 0); !now.settled[p] && !again {
			m.FailLocked("%s: message %d is not settled any more in group %s", c.Name(), p.offset, p.group)
		}
	}
	for p, is := range now.parked {
		was, known := before.parked[p]
		behind := !known && is.isTail() && m.most > 0
		counted := is.attempts > was.attempts && is.attempts <= m.fails[p]
		if p.group == brief && is.attempts <= m.fails[p] { // the group may have begun again
			continue
		}
		if is != was && !counted && (known || is.attempts > 0 || m.times[p.offset] == 0) &&
			(known || is.attempts != was.attempts || !m.claimed[p]) && !behind {
			m.FailLocked("%s: message %d is parked in group %s with %d attempts after %d", c.Name(), p.offset, p.group,
				is.attempts, was.attempts)
		}
	}
	for offset := range before.messages {
		for _, group := range now.groups {
			if !now.messages[offset] && !now.settled[place{group, offset}] {
				m.FailLocked("%s: message %d is removed, and group %s has not settled it", c.Name(), offset, group)
			}
		}
	}
	for p, n := range now.written {
		if p.group == brief {
			continue // a transaction can acknowledge the message each time that the group begins again
		}
		if n > 1 || n > before.written[p] && before.settled[p] || n > 0 && now.letters[p] > 0 {
			m.FailLocked("%s: message %d of group %s has %d transactions, %d before, and %d dead letters; it was "+
				"settled before: %t", c.Name(), p.offset, p.group, n, before.written[p], now.letters[p],
				before.settled[p])
		}
	}
	for _, p := range slices.Concat(slices.Collect(maps.Keys(now.settled)), slices.Collect(maps.Keys(now.letters))) {
		if p.group == brief {
			continue
		}
		switch n, fresh := now.letters[p], now.settled[p] && !before.settled[p]; {
		case n != before.letters[p] && !fresh, n > 1:
			m.FailLocked("%s: message %d of group %s is %d dead letters, %d before, and settled before: %t", c.Name(),
				p.offset, p.group, n, before.letters[p], before.settled[p])
		case fresh && n == 1 && !m.moved[p], fresh && n == 0 && !m.acked[p] && before.messages[p.offset]:
			m.FailLocked("%s: message %d is settled in group %s with %d dead letters; acknowledged: %t, moved: %t",
				c.Name(), p.offset, p.group, n, m.acked[p], m.moved[p])
		}
	}
}

// leaderTime returns the cluster time of the leader. The caller holds Mu.
func (m *model) leaderTime() uint64 {
	if m.Leader == nil {
		return 0
	}
	return m.Leader.NowLocked()
}

// publish publishes some messages at the leader. Their ids are their numbers.
func (m *model) publish() {
	if m.Leader == nil {
		return
	}
	var ops []command.Op
	var keys []string
	var times []uint64
	for range 1 + m.Rand.IntN(3) {
		msg := pubsub.Message{Key: []string{"", "", "x", "y"}[m.Rand.IntN(4)]}
		if m.Rand.IntN(8) == 0 {
			at := m.server(m.Leader).Now() + m.Rand.Uint64N(3000)
			msg.DeliverAt = time.UnixMilli(int64(at))
		}
		m.sent++
		msg.ID = fmt.Sprint(m.sent)
		ops = append(ops, AppendOp(orders, &msg))
		keys, times = append(keys, msg.Key), append(times, millis(msg.DeliverAt))
	}
	res := m.Propose("publish", nil, &command.Request{Kind: command.KindWrite, Ops: ops})
	m.Note("messages %v are published", res.Revisions)
	m.Mu.Lock()
	for i, offset := range res.Revisions {
		m.keys[offset], m.times[offset] = keys[i], times[i]
		m.ids[fmt.Sprint(m.sent-len(keys)+1+i)] = offset
	}
	m.Mu.Unlock()
}

// at returns a server: mostly the leader.
func (m *model) at() *server {
	if m.Leader != nil && m.Rand.IntN(5) > 0 {
		return m.server(m.Leader)
	}
	return m.servers[m.Rand.IntN(len(m.servers))]
}

func (m *model) join(n *node, s *server) {
	n.calling++
	k := s.keeper
	ctx := grouptest.WithClient(m.T.Context(), n)
	go func() {
		var errs [2]error
		for i, group := range []string{loose, strict} {
			j := Join{ID: uint64(i + 1), Topic: orders, Group: group, Concurrency: []int{10, 1}[i], Window: 4,
				RetryBackoff: time.Second}
			_, errs[i] = k.Join(ctx, n.String(), true, &j)
		}
		m.Mu.Lock()
		defer m.Mu.Unlock()
		n.calling--
		n.joined = n.joined || errs == [2]error{}
	}()
	m.Group.Settle()
}

// pull begins a pull, and checks what it returns.
func (m *model) pull(n *node, s *server) {
	n.pulling = true
	k, received, then := s.keeper, n.received, m.look(m.Tip)
	ctx := grouptest.WithClient(m.T.Context(), n)
	members := []uint64{1, 2, 3}[:2+records.Bit(n.brief)]
	go func() {
		a, known, err := k.Pull(ctx, n.String(), received, members)
		now := s.Now()
		m.Mu.Lock()
		defer m.Mu.Unlock()
		n.pulling = false
		if err == nil && !known {
			n.joined, n.brief, n.received = false, false, 0
		}
		if a.Number != 0 {
			n.received = a.Number
		}
		for i := range a.List {
			m.delivered(n, s, &a.List[i], &then, now)
		}
	}()
	m.Group.Settle()
}

// delivered checks a message that a pull has returned. The caller holds Mu.
func (m *model) delivered(n *node, s *server, h *Handed, then *view, now uint64) {
	p := place{groups()[h.ID-1], h.Offset}
	if i := slices.IndexFunc(n.held, func(o hold) bool { return o.place == p }); i >= 0 {
		n.held[i].lease = h.Lease
		return // an earlier leader has delivered it, too
	}
	free := p.group == brief && m.acts > 0 // a replay may have been applied since
	if then.settled[p] && !free && slices.Contains(then.groups, p.group) {
		m.FailLocked("server %d delivers message %d to %s after it was settled", s.ID, p.offset, p.group)
	}
	for _, earlier := range slices.Sorted(maps.Keys(m.keys)) {
		same := p.group == strict || m.keys[p.offset] != "" && m.keys[earlier] == m.keys[p.offset]
		// A group that the view does not have may be a new one, after a removal.
		same = same && m.times[earlier] == 0 && slices.Contains(then.groups, p.group)
		if earlier < p.offset && same && then.messages[earlier] && !m.over(place{p.group, earlier}) {
			m.FailLocked("server %d delivers message %d to %s before message %d is acknowledged", s.ID, p.offset,
				p.group, earlier)
		}
	}
	if at := max(m.times[p.offset], then.parked[p].at); now < at && p.group != brief {
		m.FailLocked("server %d delivers message %d to %s %d ms early", s.ID, p.offset, p.group, at-now)
	}
	if h.Attempt <= then.parked[p].attempts && p.group != brief || h.Attempt > m.fails[p]+1 {
		m.FailLocked("server %d delivers message %d to %s as attempt %d; the log has %d failures, the nodes %d", s.ID,
			p.offset, p.group, h.Attempt, then.parked[p].attempts, m.fails[p])
	}
	n.held = append(n.held, hold{p, h.Attempt, h.Lease, proofOf(h.Value)})
}

// settleOne settles a message that a node has, or repeats a call that has failed.
func (m *model) settleOne(n *node, s *server, whole bool) {
	var st Settle
	switch {
	case len(n.again) > 0:
		st = n.again[0]
		n.again = n.again[1:]
	case len(n.held) == 0:
		return
	default:
		i := m.Rand.IntN(len(n.held))
		if !whole && n.calling == 0 && m.Rand.IntN(4) == 0 {
			m.transact(n, s, n.held[i])
			return
		}
		p, attempt, lease := n.held[i].place, n.held[i].attempt, n.held[i].lease
		n.held = slices.Delete(n.held, i, i+1)
		st = Settle{Topic: orders, Group: p.group, Offset: p.offset, Attempt: attempt, Lease: lease}
		what := m.Rand.IntN(10)
		m.Mu.Lock()
		switch {
		case !whole && what < 2:
			st.Outcome = pubsub.Failed
			m.fails[p]++
		case !whole && what == 2:
			st.Outcome = pubsub.Released
		case what == 3:
			st.DeadLetter = dead(p.group).Name
			m.moved[p] = true
		default:
			m.acked[p] = true
		}
		m.Mu.Unlock()
		m.Note("%s settles message %d of %s at server %d: %d %s", n, p.offset, p.group, s.ID, st.Outcome, st.DeadLetter)
	}
	n.calling++
	k := s.keeper
	ctx := grouptest.WithClient(m.T.Context(), n)
	go func() {
		_, err := k.Settle(ctx, n.String(), []Settle{st})
		m.Mu.Lock()
		defer m.Mu.Unlock()
		n.calling--
		if err != nil {
			n.again = append(n.again, st)
			slices.SortFunc(n.again, func(a, b Settle) int { // several calls may return at the same time
				return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Offset, b.Offset),
					cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.Lease, b.Lease),
					cmp.Compare(a.Outcome, b.Outcome), cmp.Compare(a.DeadLetter, b.DeadLetter))
			})
		}
	}()
	m.Group.Settle()
}

// transact lets a node acknowledge a message in a transaction. The node keeps the delivery, and settles it later like
// other deliveries.
func (m *model) transact(n *node, s *server, h hold) {
	m.Note("%s acknowledges message %d of %s in a transaction", n, h.offset, h.group)
	m.Mu.Lock()
	m.acked[h.place], m.claimed[h.place] = true, true
	m.Mu.Unlock()
	n.calling++
	k := s.keeper
	ctx := grouptest.WithClient(m.T.Context(), n)
	go func() {
		revision, err := k.Claim(ctx, orders, h.group, h.offset, h.attempt, h.proof)
		if err == nil {
			e := acknowledgement{token: token{topic: orders, offset: h.offset}, group: h.group, revision: revision}
			ops, _ := e.Ops(orders.Group)
			_, _ = s.Commit(ctx, &command.Request{Kind: command.KindWrite, Ops: append(ops, command.Op{
				Kind: command.OpAppend, Store: ledger, Key: h.ledgerKey(), Value: []byte("1")})})
		}
		m.Mu.Lock()
		defer m.Mu.Unlock()
		n.calling--
	}()
	m.Group.Settle()
}

// step plays one step of the schedule.
func (m *model) step() {
	s := m.servers[m.Rand.IntN(len(m.servers))]
	n := m.nodes[m.Rand.IntN(len(m.nodes))]
	switch what := m.Rand.IntN(100); {
	case what < 35:
		if calls := m.Calls(); len(calls) > 0 {
			m.Release(calls[m.Rand.IntN(len(calls))], false)
		}
	case what < 45:
		m.Pass(m.Rand.Uint64N(50))
	case what < 48:
		if d, any := m.NextTimer(); any {
			m.Pass(min(d, 5000))
		}
	case what < 50:
		m.changeBrief(n, s)
	case what < 55:
		if m.sent < 60 {
			m.publish()
		}
	case what < 72:
		m.act(n, m.at())
	case what < 88:
		m.settleOne(n, m.at(), false)
	case what < 93:
		s.CatchUp()
	case what < 94:
		m.restart(s)
	case what < 95: // a node restarts
		if !n.pulling && n.calling == 0 {
			m.Note("%s restarts", n)
			m.nodes[n.id-1] = &node{id: n.id, life: n.life + 1, again: n.again}
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

// changeBrief lets a node join or leave the group brief, or an operator replay or remove it.
func (m *model) changeBrief(n *node, s *server) {
	what, offset := m.Rand.IntN(10), 1+m.Rand.Uint64N(1+m.Tip.Revision())
	if n.calling > 0 || what > 7 && m.at() == s {
		return
	}
	n.calling++
	k := s.keeper
	ctx := grouptest.WithClient(m.T.Context(), n)
	m.Mu.Lock()
	if what > 7 {
		m.acts++ // never goes down, because the call may be applied at any time
	}
	m.Mu.Unlock()
	go func() {
		var err error
		switch {
		case what < 5 && n.joined:
			known := false
			j := Join{ID: 3, Topic: orders, Group: brief, Concurrency: 10, Window: 4, RetryBackoff: time.Second,
				GroupTTL: briefLife}
			known, err = k.Join(ctx, n.String(), false, &j)
			m.Mu.Lock()
			n.brief = n.brief || known && err == nil
			m.Mu.Unlock()
		case what < 8:
			err = k.Leave(n.String(), 3)
			m.Mu.Lock()
			n.brief = n.brief && err != nil
			m.Mu.Unlock()
		case what == 8:
			_ = k.Replay(orders, brief, offset, 0)
		default:
			_, _ = k.Remove(ctx, &Removal{Topic: orders, Group: brief, Force: offset%2 == 0})
		}
		m.Mu.Lock()
		defer m.Mu.Unlock()
		n.calling--
	}()
	m.Group.Settle()
}

// act lets a node join or pull.
func (m *model) act(n *node, s *server) {
	switch {
	case !n.joined && n.calling == 0:
		m.join(n, s)
	case n.joined && !n.pulling:
		m.pull(n, s)
	}
}

// finish ends the faults, and requires that every group settles every message.
func (m *model) finish() {
	if m.Leader == nil {
		m.Elect(m.Members[0])
	}
	m.Recover()
	lead := m.server(m.Leader)
	for range 10_000 {
		if m.Broken() != "" {
			return
		}
		if calls := m.Calls(); len(calls) > 0 {
			m.Release(calls[0], true)
			continue
		}
		now := m.look(m.Tip)
		if now.allSettled() {
			return
		}
		busy := false
		for _, n := range m.nodes {
			if n.calling > 0 {
				continue
			}
			if len(n.again) > 0 || len(n.held) > 0 {
				m.settleOne(n, lead, true)
				busy = true
			} else if !n.joined || !n.pulling {
				m.act(n, lead)
				busy = true
			}
		}
		if busy {
			continue
		}
		d, any := m.NextTimer()
		if !any {
			m.Fail("nothing delivers what is left")
			return
		}
		m.Pass(d)
	}
	for _, p := range slices.SortedFunc(maps.Keys(m.look(m.Tip).parked), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.offset, b.offset))
	}) {
		m.Note("message %d of %s is parked", p.offset, p.group)
	}
	left := m.look(m.Tip)
	for _, offset := range slices.Sorted(maps.Keys(left.messages)) {
		for _, group := range left.groups {
			if !left.settled[place{group, offset}] {
				m.Note("message %d of %s is not settled", offset, group)
			}
		}
	}
	m.Fail("what is left is not settled")
}

// play plays the schedule of a seed. It returns the first invariant that did not hold, and what has happened.
func play(t *testing.T, seed uint64, steps int) (broken string, trace []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &model{Group: grouptest.New(t, seed, 3), acked: map[place]bool{}, moved: map[place]bool{},
			claimed: map[place]bool{}, fails: map[place]uint64{}, keys: map[uint64]string{},
			times: map[uint64]uint64{}, ids: map[string]uint64{},
			nodes: []*node{{id: 1}, {id: 2}}, most: []int{0, 3}[seed%2]}
		m.Before, m.After = func(*grouptest.Call) { m.before = m.look(m.Tip) }, m.judge
		m.Changed = func(s *grouptest.Member) { m.server(s).keeper.Update() }
		for _, s := range m.Members {
			m.servers = append(m.servers, &server{Member: s, model: m})
		}
		for _, s := range m.servers {
			s.open()
		}
		m.Group.Settle()
		m.Elect(m.Members[0])
		policies := []command.Op{{Kind: command.OpSet, Store: kv.TopicStore, Key: orders.key(tablePolicy, ""),
			Value: (&Policy{Retention: 2 * time.Second, MaxBytes: 1000}).encode()}}
		for _, group := range groups() { // the dead letters must stay, so that judge can count them
			policies = append(policies, command.Op{Kind: command.OpSet, Store: kv.TopicStore,
				Key:   dead(group).key(tablePolicy, ""),
				Value: (&Policy{Retention: DefaultRetention, MaxBytes: DefaultMaxBytes}).encode()})
		}
		m.Propose("policy", nil, &command.Request{Kind: command.KindWrite, Ops: policies})
		for i := 0; i < steps && m.Broken() == ""; i++ {
			m.step()
		}
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

func TestModel_KeepsInvariants(t *testing.T) {
	first, n := testutil.Seeds(t, 40)
	for seed := first; seed < first+n; seed++ {
		if broken, trace := play(t, seed, 700); broken != "" {
			t.Fatalf("seed %d: %s\n%s", seed, broken, strings.Join(trace[max(0, len(trace)-60):], "\n"))
		}
	}
}

func TestModel_SeedDecidesEverything(t *testing.T) {
	testutil.SkipUnderRace(t, "the detector chooses goroutines at random, so a seed does not decide the order")
	for seed := range uint64(3) {
		_, first := play(t, seed, 300)
		if _, again := play(t, seed, 300); !slices.Equal(first, again) {
			for i := range first {
				if i >= len(again) || first[i] != again[i] {
					t.Fatalf("seed %d differs at event %d of %d: %q and %q", seed, i, len(first), first[i],
						again[min(i, len(again)-1)])
				}
			}
		}
	}
}
