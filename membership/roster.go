package membership

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// State is the state of a member. A member that is only suspected to have failed is still Alive, because memberlist
// does not report suspicions.
type State uint8

// The states.
const (
	Alive  State = iota + 1
	Left         // the node announced that it leaves
	Failed       // the node stopped answering
)

// String returns the name of the state, as status and metrics show it.
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

// Member is one incarnation of a node, as this node knows it.
type Member struct {
	Facts
	Gossip netip.AddrPort // gossip address of the member
	State  State
	Since  time.Time // when the member entered State, as seen by this node
}

// Roster is an immutable list of all nodes that this node knows, including this node. It has one entry per node id.
// All methods are safe for concurrent use. The caller may change the returned slices.
type Roster struct {
	members []Member // by node id
	self    string   // node id
	changed chan struct{}
}

// Changed returns a channel that is closed when a newer roster replaces r. The caller then gets the newest roster from
// Gossip.Roster. After several quick changes, the caller does not see the rosters between r and the newest one.
func (r *Roster) Changed() <-chan struct{} { return r.changed }

// Members returns all members, sorted by node id.
func (r *Roster) Members() []Member { return slices.Clone(r.members) }

// Self returns this node's own entry. Its state is Alive until Leave is called.
func (r *Roster) Self() Member {
	m, _ := r.Node(r.self)
	return m
}

// Node returns the member with the given node id, or false if there is none.
func (r *Roster) Node(id string) (Member, bool) {
	i, ok := slices.BinarySearchFunc(r.members, id, func(m Member, id string) int {
		return cmp.Compare(m.NodeID, id)
	})
	if !ok {
		return Member{}, false
	}
	return r.members[i], true
}

// Server returns the member with the given server id, or false if there is none. A node with a new data directory has a
// new server id, and is no longer found by the previous one.
func (r *Roster) Server(id string) (Member, bool) {
	i := slices.IndexFunc(r.members, func(m Member) bool { return m.ServerID == id && id != "" })
	if i < 0 {
		return Member{}, false
	}
	return r.members[i], true
}

// StateOf returns the state of a server as a word for users:
//
//   - alive, left or failed: the state of the member
//   - replaced: the node now has another server id, because it runs with another data directory
//   - unknown: gossip has not reported the node since this node started, or the node was gone for longer than
//     Timing.Forget
func (r *Roster) StateOf(nodeID, serverID string) string {
	if m, known := r.Server(serverID); known {
		return m.State.String()
	}
	if _, known := r.Node(nodeID); known {
		return "replaced"
	}
	return "unknown"
}

// PeerAddr returns the last known address of a server's peer port, or false if the server is unknown. The server need
// not be alive.
func (r *Roster) PeerAddr(serverID string) (string, bool) {
	m, ok := r.Server(serverID)
	return m.PeerAddr, ok
}

// Servers returns the members that hold replicas, in any state, sorted by node id.
func (r *Roster) Servers() []Member {
	return r.pick(func(m *Member) bool { return m.Role == Server })
}

// Sidecars returns the members that hold no data, in any state, sorted by node id.
func (r *Roster) Sidecars() []Member {
	return r.pick(func(m *Member) bool { return m.Role == Sidecar })
}

// Alive returns the members that are alive, including this node, sorted by node id.
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

// Difference is a setting that has different values on live members.
type Difference struct {
	Setting string // bootstrap-expect, voters or version
	Values  []Value
}

// Value is one value of a setting and the nodes that have it.
type Value struct {
	Value string
	Nodes []string // node ids, sorted
}

// String returns the setting, its values and their nodes.
func (d Difference) String() string {
	text := d.Setting + " differs: " + formatValues(d.Values)
	if d.Setting == settingVoters {
		text += "; --voters counts only when the cluster forms, and quorate voters changes the number later"
	}
	return text
}

const settingVoters = "voters"

// Differences returns the settings that have different values on live members but do not prevent a common cluster:
//
//   - the version of the program, on all nodes
//   - the number of voters, on servers
//   - bootstrap-expect, on servers, until the cluster is formed
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
	out = appendDifference(out, settingVoters, alive, func(m *Member) string {
		if m.Voters == 0 || m.Role != Server {
			return ""
		}
		return strconv.FormatUint(uint64(m.Voters), 10)
	})
	return appendDifference(out, "version", alive, func(m *Member) string { return m.Version })
}

func appendDifference(out []Difference, setting string, members []Member, get func(*Member) string) []Difference {
	if values := valuesOf(members, get); len(values) > 1 {
		return append(out, Difference{Setting: setting, Values: values})
	}
	return out
}
