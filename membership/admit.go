package membership

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/hashicorp/memberlist"

	"github.com/quorate/quorate/internal/fault"
)

// Reason is why nodes are not merged. The set is closed; its texts are metric labels.
type Reason string

// The reasons.
const (
	DuplicateID    Reason = "duplicate_id"    // two lives of one node id both answer
	ForeignCluster Reason = "foreign_cluster" // cluster ids differ
	Partitions     Reason = "partitions"      // partition counts differ
	Unreadable     Reason = "unreadable"      // facts in a form this version does not know
	itself         Reason = "itself"          // a seed turned out to be this node
)

// Reasons returns all of them.
func Reasons() []Reason { return []Reason{DuplicateID, ForeignCluster, Partitions, Unreadable} }

// refusal is one decision not to merge.
type refusal struct {
	reason Reason
	about  string           // the node it is about: one log line per reason and node and minute
	peers  []netip.AddrPort // what the other side knew
	err    error
}

// agree checks that members can be one cluster. The node it is about is the newcomer, or
// whoever differs from most.
func agree(members []Member) *refusal {
	clusters := valuesOf(members, func(m *Member) string { return m.ClusterID })
	if len(clusters) > 1 {
		return &refusal{reason: ForeignCluster, about: odd(clusters), err: &fault.Error{Code: fault.Denied, Op: "membership.Join",
			Msg:  "nodes of different clusters do not mix: cluster " + spellOut(clusters, members),
			Hint: "give each cluster a --cluster name of its own, or empty the data directory of a node that is to change clusters"}}
	}
	partitions := valuesOf(members, func(m *Member) string {
		if m.Partitions == 0 {
			return ""
		}
		return strconv.FormatUint(uint64(m.Partitions), 10)
	})
	if len(partitions) > 1 {
		return &refusal{reason: Partitions, about: odd(partitions), err: &fault.Error{Code: fault.Invalid, Op: "membership.Join",
			Msg:  "--partitions differs: " + spellOut(partitions, members),
			Hint: "start all with the same value; it is fixed when the cluster is made"}}
	}
	return nil
}

// odd is the first of those in the minority.
func odd(values []Value) string { return values[len(values)-1].Nodes[0] }

// spellOut is spell with the address of one node for each value, so that it can be found.
func spellOut(values []Value, members []Member) string {
	out := slices.Clone(values)
	for i, v := range out {
		who := slices.Clone(v.Nodes)
		for _, m := range members {
			if m.NodeID == who[0] {
				who[0] = m.NodeID + " (" + m.Gossip.String() + ")"
				break
			}
		}
		out[i].Nodes = who
	}
	return spell(out)
}

// merged is members with others laid over them: for one node id the newest life counts.
func merged(members, others []Member) []Member {
	out := slices.Clone(members)
	for _, o := range others {
		i := slices.IndexFunc(out, func(m Member) bool { return m.NodeID == o.NodeID })
		switch {
		case i < 0:
			out = append(out, o)
		case o.BootID >= out[i].BootID:
			out[i] = o
		}
	}
	return out
}

// overlap is two lives of one node id that are both taken for alive; b came after a.
type overlap struct{ a, b Member }

// overlaps finds lives that differ, or are in two places at once: a machine that was copied
// with its memory runs under one boot id twice.
func overlaps(members, others []Member) []overlap {
	var out []overlap
	for _, m := range members {
		for _, o := range others {
			if m.NodeID == o.NodeID && (m.BootID != o.BootID || m.Gossip != o.Gossip) {
				out = append(out, overlap{m, o})
			}
		}
	}
	return out
}

// refusal says that both lives answer.
func (o *overlap) refusal() *refusal {
	return &refusal{reason: DuplicateID, about: o.a.NodeID, err: &fault.Error{Code: fault.Conflict, Op: "membership.Join",
		Msg:  fmt.Sprintf("node id %s is used twice: by %s (since boot %s) and by %s (boot %s)", o.a.NodeID, o.a.Gossip, o.a.BootID, o.b.Gossip, o.b.BootID),
		Hint: "give every node a --node-id and a data directory of its own; a copied data directory is the same node twice"}}
}

// memberOf reads a node that gossip reports.
func memberOf(n *memberlist.Node) (Member, *refusal) {
	at := addrPort(n)
	f, err := decodeFacts(n.Name, n.Meta)
	if err != nil {
		return Member{}, &refusal{reason: Unreadable, about: f.NodeID, peers: []netip.AddrPort{at},
			err: fault.Wrap(err, "membership.Join", "the node at "+at.String()+" is refused")}
	}
	return Member{Facts: f, Gossip: at, State: Alive}, nil
}

func addrPort(n *memberlist.Node) netip.AddrPort {
	ip, _ := netip.AddrFromSlice(n.Addr)
	return netip.AddrPortFrom(ip.Unmap(), n.Port)
}
