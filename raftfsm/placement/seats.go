package placement

import (
	"cmp"
	"slices"
	"time"
)

// standing is the state of a configured server.
type standing uint8

const (
	alive      standing = iota
	left                // stopped gracefully
	failed              // stopped answering
	unseen              // no member has its server id
	sidecar             // its node runs without data
	superseded          // its node runs with another data directory
)

// seat is one configured server and what is known about it.
type seat struct {
	Server
	node     string
	standing standing
	since    time.Time // of the standing
	leader   bool
	removed  bool // by an operator
	slow     bool
	low      bool // its disk is nearly full
}

// up reports whether the server counts towards the majority.
func (s *seat) up() bool { return s.standing == alive }

// view is an Input prepared for lookups.
type view struct {
	Input
	seats   []seat   // by server id
	members []Member // one per node, by node id
}

func look(in Input) *view {
	in.Limits = in.Limits.WithDefaults()
	in.Voters = max(in.Voters, 1)
	if in.Watching.IsZero() {
		in.Watching = in.Now
	}
	v := &view{Input: in, members: onePerNode(in.Members)}
	for _, s := range in.Servers {
		v.seats = append(v.seats, v.seat(s))
	}
	slices.SortFunc(v.seats, func(a, b seat) int { return cmp.Compare(a.ID, b.ID) })
	return v
}

// onePerNode sorts members by node id and keeps one member for each node. It prefers a member that is alive, then the
// one that has entered its state last.
func onePerNode(in []Member) []Member {
	list := slices.Clone(in)
	slices.SortFunc(list, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(rank(a), rank(b)), b.Since.Compare(a.Since),
			cmp.Compare(b.Server, a.Server))
	})
	return slices.CompactFunc(list, func(a, b Member) bool { return a.Node == b.Node })
}

func rank(m Member) int {
	if m.State == Alive {
		return 0
	}
	return 1
}

func (v *view) member(node string) (Member, bool) {
	i, ok := slices.BinarySearchFunc(v.members, node,
		func(m Member, node string) int { return cmp.Compare(m.Node, node) })
	if !ok {
		return Member{}, false
	}
	return v.members[i], true
}

func (v *view) seat(s Server) seat {
	out := seat{Server: s, node: NodeOf(s.ID), leader: s.ID == v.Leader, removed: slices.Contains(v.Removed, s.ID)}
	out.standing, out.since = v.standingOf(&out)
	if m, ok := v.member(out.node); ok {
		out.slow, out.low = m.SlowDisk, m.LowDisk && m.Server == s.ID
	}
	return out
}

func (v *view) standingOf(s *seat) (standing, time.Time) {
	m, ok := v.member(s.node)
	switch {
	case s.leader: // a server that leads is alive
		return alive, time.Time{}
	case !ok:
		return unseen, v.Watching
	case m.State == Alive && m.Server == s.ID:
		return alive, m.Since
	case m.State == Alive && m.Server == "":
		return sidecar, m.Since
	case m.State == Alive:
		return superseded, m.Since
	case m.State == Left && m.Server == s.ID:
		return left, m.Since
	// The node has failed, or has stopped with another data directory. This server does not run in either case.
	default:
		return failed, m.Since
	}
}

// gone returns how long a server has had its current standing, for example how long ago it failed.
func (v *view) gone(s *seat) time.Duration { return v.Now.Sub(s.since) }

func (v *view) settled(s *seat) bool { return v.gone(s) >= v.Limits.Settle }

// lost reports whether a voter's vote should move to another server. It returns false for the leader and for a
// non-voter.
func (v *view) lost(s *seat) bool {
	switch {
	case !s.Voter || s.leader:
		return false
	case s.removed, s.standing == superseded:
		return true
	default:
		return !s.up() && v.settled(s)
	}
}

// doomed reports whether a voter will lose its vote. It returns true for a lost voter, and for a leader that an
// operator has removed.
func (v *view) doomed(s *seat) bool { return v.lost(s) || s.Voter && s.leader && s.removed }

// closeBehind reports whether the lag of a server is known and at most Limits.MaxLag.
func (v *view) closeBehind(s *seat) bool { return s.LagKnown && s.Lag <= v.Limits.MaxLag }

func (v *view) steady(s *seat) bool {
	return v.closeBehind(s) && !s.SteadySince.IsZero() && v.Now.Sub(s.SteadySince) >= v.Limits.Stable
}

// ready reports whether a non-voter may become a voter.
func (v *view) ready(s *seat) bool { return !s.Voter && s.up() && !s.removed && v.steady(s) }

// pending reports whether a non-voter may become ready soon.
func (v *view) pending(s *seat) bool {
	if s.Voter || s.removed || s.standing == superseded {
		return false
	}
	return s.up() && !v.steady(s) || !s.up() && !v.settled(s)
}

// pick returns the seats for which f is true, by server id.
func (v *view) pick(f func(*seat) bool) []*seat {
	var out []*seat
	for i := range v.seats {
		if f(&v.seats[i]) {
			out = append(out, &v.seats[i])
		}
	}
	return out
}

func isVoter(s *seat) bool { return s.Voter }

// majority reports whether more than half of the voters are alive, not counting the excluded voter. excluded may be
// nil.
func (v *view) majority(excluded *seat) bool { return v.most(excluded, (*seat).up) }

// most reports whether more than half of the voters satisfy a condition, not counting the excluded voter. excluded may
// be nil.
func (v *view) most(excluded *seat, is func(*seat) bool) bool {
	all, count := 0, 0
	for _, s := range v.pick(isVoter) {
		if s == excluded {
			continue
		}
		all++
		if is(s) {
			count++
		}
	}
	return 2*count > all
}

// limit returns the configured number of voters, or one fewer if that number is even and above two.
func (v *view) limit() int { return odd(v.Voters) }

// odd subtracts one from an even number above two.
func odd(n int) int {
	if n > 2 && n%2 == 0 {
		return n - 1
	}
	return n
}

// target returns how many voters the group should have now. This is the configured number, or fewer if the group does
// not have enough voters and non-voters that may become voters. The result is never an even number above two.
func (v *view) target() int {
	voters, ready := len(v.pick(isVoter)), len(v.pick(v.ready))
	return odd(min(voters+ready, v.limit()))
}

// strangers returns servers that are alive, unknown to the group and may be added.
func (v *view) strangers() []Member {
	var out []Member
	for _, m := range v.members {
		if m.State == Alive && m.Server != "" && !v.knows(m.Server) && !slices.Contains(v.Removed, m.Server) {
			out = append(out, m)
		}
	}
	return out
}

func (v *view) knows(server string) bool {
	return slices.ContainsFunc(v.seats, func(s seat) bool { return s.ID == server })
}

// led returns the leader's seat if the leader votes, and otherwise nil.
func (v *view) led() *seat {
	for _, s := range v.pick(isVoter) {
		if s.leader {
			return s
		}
	}
	return nil
}
