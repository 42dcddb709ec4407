package membership

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// State is what gossip makes of a member. A member that is merely suspected is alive: the
// library does not tell, and most suspicions are refuted.
type State uint8

// The states.
const (
	Alive  State = iota + 1
	Left         // it said good-bye
	Failed       // it stopped answering
)

// String is the word for a state, as status and metrics print it.
func (s State) String() string {
	switch s {
	case Alive:
		return "alive"
	case Left:
		return "left"
	case Failed:
		return "failed"
	default:
		return fmt.Sprintf("state(%d)", uint8(s))
	}
}

// Member is one life of one node, as this node knows it.
type Member struct {
	Facts
	Gossip netip.AddrPort // where it gossips
	State  State
	Since  time.Time // when this node saw it enter State
}

// Roster is every node this one knows, at one moment: itself and the others, one entry per
// node id. It never changes; Changed tells when there is a newer one. All methods are safe
// for concurrent use, and what they return belongs to the caller.
type Roster struct {
	members []Member // by node id
	self    string   // node id
	changed chan struct{}
}

// Changed is closed when Gossip.Roster returns a newer roster than this. Whoever looks at
// the roster after each change sees the last one, but not every one on the way.
func (r *Roster) Changed() <-chan struct{} { return r.changed }

// Members returns all members by node id.
func (r *Roster) Members() []Member { return slices.Clone(r.members) }

// Self returns this node's own entry. It is Alive until Leave.
func (r *Roster) Self() Member {
	m, _ := r.Node(r.self)
	return m
}

// Node finds a member by its node id.
func (r *Roster) Node(id string) (Member, bool) {
	i, ok := slices.BinarySearchFunc(r.members, id, func(m Member, id string) int { return cmp.Compare(m.NodeID, id) })
	if !ok {
		return Member{}, false
	}
	return r.members[i], true
}

// Server finds a member by its server id. A member that runs with another data directory now
// is not found.
func (r *Roster) Server(id string) (Member, bool) {
	i := slices.IndexFunc(r.members, func(m Member) bool { return m.ServerID == id && id != "" })
	if i < 0 {
		return Member{}, false
	}
	return r.members[i], true
}

// PeerAddr returns where a server's peer port is, or was when it was last heard of: whether
// it is alive is for the caller to find out by dialling.
func (r *Roster) PeerAddr(serverID string) (string, bool) {
	m, ok := r.Server(serverID)
	return m.PeerAddr, ok
}

// Servers returns the members that hold replicas, by node id, in any state.
func (r *Roster) Servers() []Member {
	return r.pick(func(m *Member) bool { return m.Role == Server })
}

// Sidecars returns the members that hold no data, by node id, in any state.
func (r *Roster) Sidecars() []Member {
	return r.pick(func(m *Member) bool { return m.Role == Sidecar })
}

// Alive returns the members that are alive, this node included, by node id.
func (r *Roster) Alive() []Member { return r.pick(func(m *Member) bool { return m.State == Alive }) }

func (r *Roster) pick(f func(*Member) bool) []Member {
	var out []Member
	for i := range r.members {
		if f(&r.members[i]) {
			out = append(out, r.members[i])
		}
	}
	return out
}

// alone reports whether no other member is alive.
func (r *Roster) alone() bool {
	return !slices.ContainsFunc(r.members, func(m Member) bool { return m.State == Alive && m.NodeID != r.self })
}

// Understood returns the newest versions of each form that every member understands: those
// alive, and the servers that may come back.
func (r *Roster) Understood() Formats {
	out := r.Self().Formats
	for i := range r.members {
		m := &r.members[i]
		if m.State != Alive && m.Role != Server {
			continue
		}
		out.Command = min(out.Command, m.Formats.Command)
		out.Snapshot = min(out.Snapshot, m.Formats.Snapshot)
		out.RPC = min(out.RPC, m.Formats.RPC)
	}
	return out
}

// Difference is a setting on which the members alive do not agree.
type Difference struct {
	Setting string // bootstrap-expect or version
	Values  []Value
}

// Value is one value of a setting and who has it.
type Value struct {
	Value string
	Nodes []string // node ids, sorted
}

// String names the setting, its values and who has which.
func (d Difference) String() string { return d.Setting + " differs: " + spell(d.Values) }

// Differences returns the settings on which members alive disagree without being refused:
// bootstrap-expect among servers while nobody belongs to a cluster yet (afterwards it means
// nothing), and the version of the program.
func (r *Roster) Differences() []Difference {
	alive := r.Alive()
	var out []Difference
	formed := slices.ContainsFunc(alive, func(m Member) bool { return m.ClusterID != "" })
	if !formed {
		out = appendDifference(out, "bootstrap-expect", alive, func(m *Member) string {
			if m.BootstrapExpect == 0 || m.Role != Server {
				return ""
			}
			return strconv.FormatUint(uint64(m.BootstrapExpect), 10)
		})
	}
	return appendDifference(out, "version", alive, func(m *Member) string { return m.Version })
}

func appendDifference(out []Difference, setting string, members []Member, get func(*Member) string) []Difference {
	if values := valuesOf(members, get); len(values) > 1 {
		return append(out, Difference{Setting: setting, Values: values})
	}
	return out
}
