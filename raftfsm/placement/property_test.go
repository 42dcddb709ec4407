package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/raftfsm/placement"
)

// host is one node of a simulated cluster.
type host struct {
	member placement.Member
	disks  int  // how many data directories it has had
	behind bool // its server has not caught up
}

// world is a simulated cluster with one group, and its history.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	in      placement.Input
	hosts   []*host
	history []string
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)),
		in: placement.Input{Now: start(), Watching: start(), Limits: limits()}}
	w.in.Voters = 1 + w.rng.IntN(6)
	w.join()
	first := w.hosts[0].member.Server
	w.in.Servers = []placement.Server{{ID: first, Voter: true, LagKnown: true}}
	w.in.Leader = first
	return w
}

func (w *world) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

func (w *world) join() {
	h := &host{disks: 1, behind: true,
		member: placement.Member{Node: fmt.Sprintf("n%d", len(w.hosts)+1), State: placement.Alive, Since: w.in.Now}}
	h.member.Server = h.member.Node + ".1"
	w.hosts = append(w.hosts, h)
	w.note("%s joins", h.member.Node)
}

func (w *world) set(h *host, s placement.State) {
	if h.member.State != s {
		h.member.State, h.member.Since = s, w.in.Now
		w.note("%s is in state %d", h.member.Node, s)
	}
}

// wipe restarts a node, or replaces it, with an empty disk.
func (w *world) wipe(h *host) {
	h.disks++
	h.behind = true
	h.member.Server = fmt.Sprintf("%s.%d", h.member.Node, h.disks)
	h.member.State, h.member.Since = placement.Alive, w.in.Now
	w.note("%s is wiped", h.member.Node)
}

// happen makes one random event.
func (w *world) happen() {
	h := w.hosts[w.rng.IntN(len(w.hosts))]
	switch w.rng.IntN(12) {
	case 0, 1:
		if len(w.hosts) < 9 {
			w.join()
		}
	case 2, 3:
		w.set(h, placement.Failed)
	case 4:
		w.set(h, placement.Left)
	case 5, 6, 7:
		w.set(h, placement.Alive)
	case 8:
		w.wipe(h)
	case 9:
		w.in.Voters = w.rng.IntN(7)
		w.note("%d voters are wanted", w.in.Voters)
	case 10:
		if id := h.member.Server; w.rng.IntN(3) == 0 && !slices.Contains(w.in.Removed, id) {
			w.in.Removed = append(w.in.Removed, id)
			w.note("%s is removed by an operator", id)
		}
	case 11:
		h.behind = !h.behind
		w.note("%s is behind: %v", h.member.Node, h.behind)
	}
	w.pass(time.Duration(w.rng.IntN(40)) * time.Second)
}

// pass advances time. Servers report their lags, and a leader is elected if that is necessary and possible.
func (w *world) pass(d time.Duration) {
	w.in.Now = w.in.Now.Add(d)
	w.in.Members = nil
	for _, h := range w.hosts {
		w.in.Members = append(w.in.Members, h.member)
	}
	for i := range w.in.Servers {
		w.measure(&w.in.Servers[i])
	}
	if !w.alive(w.in.Leader) || !w.votes(w.in.Leader) || !w.majority() {
		w.elect()
	}
}

func (w *world) measure(s *placement.Server) {
	h := w.host(s.ID)
	s.LagKnown = w.alive(s.ID)
	s.Lag = 0
	if h.behind {
		s.Lag = 1_000
	}
	if !s.LagKnown {
		s.SteadySince = time.Time{}
		return
	}
	s.SteadySince = placement.Steady(s.SteadySince, s.Lag, w.in.Limits.MaxLag, w.in.Now)
}

func (w *world) elect() {
	w.in.Leader = ""
	if !w.majority() {
		return
	}
	for _, s := range w.in.Servers {
		if s.Voter && w.alive(s.ID) && (w.in.Leader == "" || w.rng.IntN(2) == 0) {
			w.in.Leader = s.ID
		}
	}
	w.note("%s leads", w.in.Leader)
}

func (w *world) host(id string) *host {
	for _, h := range w.hosts {
		if h.member.Node == placement.NodeOf(id) {
			return h
		}
	}
	w.t.Fatalf("no host has server %q", id)
	return nil
}

func (w *world) alive(id string) bool {
	if id == "" {
		return false
	}
	h := w.host(id)
	return h.member.Server == id && h.member.State == placement.Alive
}

func (w *world) find(id string) *placement.Server {
	for i := range w.in.Servers {
		if w.in.Servers[i].ID == id {
			return &w.in.Servers[i]
		}
	}
	return nil
}

func (w *world) votes(id string) bool { s := w.find(id); return s != nil && s.Voter }

// majority reports whether more than half of the voters are alive, as raft would see it.
func (w *world) majority() bool {
	all, up := 0, 0
	for _, s := range w.in.Servers {
		if s.Voter {
			all++
			if w.alive(s.ID) {
				up++
			}
		}
	}
	return 2*up > all
}

// step plans, checks the plan and applies it. It reports whether anything was planned.
func (w *world) step() bool {
	plan := placement.Plan(w.in)
	w.checkOrderIsNoInfluence(plan)
	w.checkVerdicts(plan)
	if len(plan) == 0 {
		return false
	}
	if len(plan) > 1 {
		w.fail("two changes at once: %+v", plan)
	}
	c := plan[0]
	w.note("-> %s %s: %s", c.Op, c.Server, c.Reason)
	if !w.majority() || w.in.Leader == "" {
		w.fail("a change without a majority or a leader")
	}
	w.apply(c)
	if !w.majority() {
		w.fail("the change took the majority away")
	}
	w.pass(0)
	return true
}

func (w *world) apply(c placement.Change) {
	s := w.find(c.Server)
	if (s == nil) != (c.Op == placement.Add) {
		w.fail("%s of %s, configured: %v", c.Op, c.Server, s != nil)
	}
	if c.Op == placement.Remove || c.Op == placement.Demote {
		if c.Server == w.in.Leader {
			w.fail("the leader's own vote is touched")
		}
	}
	switch c.Op {
	case placement.Add:
		w.require(w.alive(c.Server) && !slices.Contains(w.in.Removed, c.Server),
			"a server that is not alive, or was removed, is added")
		w.in.Servers = append(w.in.Servers, placement.Server{ID: c.Server})
	case placement.Promote:
		w.require(!s.Voter && w.alive(c.Server) && s.Lag <= w.in.Limits.MaxLag && !s.SteadySince.IsZero(),
			"a server that does not keep up is promoted")
		s.Voter = true
	case placement.Demote:
		w.require(s.Voter, "a non-voter is demoted")
		s.Voter = false
	case placement.Remove:
		h := w.host(c.Server)
		stays := h.member.State == placement.Left && h.member.Server == c.Server &&
			!slices.Contains(w.in.Removed, c.Server)
		w.require(!stays, "a server that left gracefully is removed")
		w.in.Servers = slices.DeleteFunc(w.in.Servers, func(s placement.Server) bool { return s.ID == c.Server })
	case placement.Transfer:
		w.require(s.Voter && w.alive(c.Server) && c.Server != w.in.Leader,
			"leadership goes to a server that cannot lead")
		w.in.Leader = c.Server
	}
}

func (w *world) require(ok bool, what string) {
	if !ok {
		w.fail("%s", what)
	}
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\nservers: %+v\nleader: %s\nmembers: %+v\nhistory:\n%s", fmt.Sprintf(format, args...), w.in.Servers,
		w.in.Leader, w.in.Members, strings.Join(w.history, "\n"))
}

// checkOrderIsNoInfluence checks that shuffled lists in the input lead to the same plan and the same verdicts.
func (w *world) checkOrderIsNoInfluence(plan []placement.Change) {
	in := w.in
	in.Servers, in.Members, in.Removed = slices.Clone(in.Servers), slices.Clone(in.Members), slices.Clone(in.Removed)
	w.rng.Shuffle(len(in.Servers), func(i, j int) { in.Servers[i], in.Servers[j] = in.Servers[j], in.Servers[i] })
	w.rng.Shuffle(len(in.Members), func(i, j int) { in.Members[i], in.Members[j] = in.Members[j], in.Members[i] })
	w.rng.Shuffle(len(in.Removed), func(i, j int) { in.Removed[i], in.Removed[j] = in.Removed[j], in.Removed[i] })
	if diff := cmp.Diff(plan, placement.Plan(in)); diff != "" {
		w.fail("the order of the input changes the plan: %s", diff)
	}
	if diff := cmp.Diff(placement.Explain(w.in), placement.Explain(in)); diff != "" {
		w.fail("the order of the input changes the explanation: %s", diff)
	}
}

// checkVerdicts compares the explanations with the plan.
func (w *world) checkVerdicts(plan []placement.Change) {
	verdicts := map[string]placement.Verdict{}
	for _, v := range placement.Explain(w.in) {
		verdicts[v.Server] = v
	}
	for _, s := range w.in.Servers {
		if v, ok := verdicts[s.ID]; !ok || v.Voter != s.Voter {
			w.fail("%s is not explained", s.ID)
		}
	}
	for _, c := range plan {
		if c.Op == placement.Promote && !strings.HasSuffix(verdicts[c.Server].Reason, "it becomes one next") {
			w.fail("%s is promoted, but its verdict is %s", c.Server, verdicts[c.Server].Reason)
		}
	}
	for id, v := range verdicts {
		next := strings.HasSuffix(v.Reason, "it becomes one next")
		if next && !slices.ContainsFunc(plan,
			func(c placement.Change) bool { return c.Server == id || c.Op != placement.Promote }) {
			w.fail("%q, but the plan is %+v", v.Reason, plan)
		}
	}
}

// settle lets the cluster come to rest: all servers catch up and time passes.
func (w *world) settle() {
	for _, h := range w.hosts {
		h.behind = false
	}
	w.note("nothing happens any more")
	for quiet, steps := 0, 0; quiet < 3; steps++ {
		w.pass(45 * time.Second)
		if w.step() {
			quiet = 0
		} else {
			quiet++
		}
		if steps > 100 {
			w.fail("the plan never comes to rest")
		}
	}
}

// checkRest checks that a cluster at rest has added all servers, and has as many voters as it should have.
func (w *world) checkRest() {
	if w.in.Leader == "" {
		return
	}
	voters, nonVoters, lost := 0, 0, 0
	for _, s := range w.in.Servers {
		gone := !w.alive(s.ID) || slices.Contains(w.in.Removed, s.ID)
		switch {
		case s.Voter && gone:
			lost++
			voters++
		case s.Voter:
			voters++
		case !gone:
			nonVoters++
		}
	}
	for _, h := range w.hosts {
		id := h.member.Server
		if w.alive(id) && !slices.Contains(w.in.Removed, id) && w.find(id) == nil {
			w.fail("%s is alive and was never added", id)
		}
	}
	most := max(w.in.Voters, 1)
	if most > 2 && most%2 == 0 {
		most--
	}
	w.require(voters <= most, fmt.Sprintf("%d voters, %d are wanted", voters, most))
	w.require(voters < 3 || voters%2 == 1, fmt.Sprintf("%d voters are an even number", voters))
	w.require(nonVoters == 0 || lost == 0, "a vote is lost although a non-voter could take it")
	could := min(voters+nonVoters, most)
	w.require(could <= voters || could > 2 && could%2 == 0,
		fmt.Sprintf("%d voters and %d non-voters that could vote, %d are wanted", voters, nonVoters, most))
}

// TestPlan_RandomClusters runs random histories. Its checks are in step, apply and checkRest.
func TestPlan_RandomClusters(t *testing.T) {
	for seed := range uint64(1_500) {
		w := newWorld(t, seed)
		w.note("seed %d", seed)
		for range 60 {
			w.happen()
			if w.rng.IntN(3) > 0 {
				w.step()
			}
		}
		w.settle()
		w.checkRest()
	}
}

func TestFunctions_DoNotChangeInput(t *testing.T) {
	for _, row := range policy() {
		before := row.in
		before.Servers, before.Members, before.Removed =
			slices.Clone(row.in.Servers), slices.Clone(row.in.Members), slices.Clone(row.in.Removed)
		placement.Plan(row.in)
		placement.Explain(row.in)
		placement.Leaders(row.in, row.in)
		if diff := cmp.Diff(before, row.in); diff != "" {
			t.Errorf("%s: %s", row.name, diff)
		}
	}
}
