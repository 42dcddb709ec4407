package membership

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/hashicorp/memberlist"

	"github.com/quorate/quorate/internal/fault"
)

// Reason is why a node, packet or connection was refused. The values are metric labels.
type Reason string

// The reasons.
const (
	DuplicateID    Reason = "duplicate_id"    // two incarnations of one node id both answer
	ForeignCluster Reason = "foreign_cluster" // cluster ids differ
	OlderEpoch     Reason = "older_epoch"     // a server was not part of a rescue of the cluster
	Partitions     Reason = "partitions"      // partition counts differ
	OlderFormat    Reason = "older_format"    // a server does not understand the log entries of the cluster
	Unreadable     Reason = "unreadable"      // facts in a form this version does not know
	Plain          Reason = "plain"           // a packet or connection without protection
	UnknownKey     Reason = "unknown_key"     // a packet sealed under another token
	Stale          Reason = "stale"           // a packet for another incarnation of this node, as after a restart
	Replayed       Reason = "replayed"        // a packet that was received before
	Forged         Reason = "forged"          // a packet that was changed or made up
	Authority      Reason = "authority"       // a certificate of another authority or token
	Expired        Reason = "expired"         // a certificate that has expired or is not valid yet
	Certificate    Reason = "certificate"     // a certificate that cannot be used
	Handshake      Reason = "tls"             // a connection whose TLS handshake failed for another reason
	// a connection that was closed because too many connections had not finished their handshakes
	Busy   Reason = "busy"
	Silent Reason = "silent" // a connection without any data
	itself Reason = "itself" // a seed turned out to be this node
)

// Reasons returns every Reason that is counted.
func Reasons() []Reason {
	return []Reason{DuplicateID, ForeignCluster, OlderEpoch, Partitions, OlderFormat, Unreadable, Plain, UnknownKey,
		Stale, Replayed, Forged, Authority, Expired, Certificate, Handshake, Busy, Silent}
}

// refusal describes why a node, a packet or a connection is refused.
type refusal struct {
	reason Reason
	about  string           // the node or host concerned; each gets one log record per reason and minute
	peers  []netip.AddrPort // addresses of the nodes that the other side knows
	err    error
	epoch  uint32 // only with OlderEpoch: the newest epoch of the cluster
}

// agree returns nil if the nodes of both lists can form one cluster. Otherwise it returns a refusal, which names a node
// whose setting differs from that of the others.
//
// Cluster ids are compared for all incarnations, because the newest incarnation of a node id may have no cluster id.
// Other settings are compared only for the newest incarnation of each node.
func agree(members, others []Member) *refusal {
	incarnations := slices.Clone(members)
	for _, o := range others {
		if !slices.ContainsFunc(incarnations, func(m Member) bool {
			return m.NodeID == o.NodeID && m.ClusterID == o.ClusterID
		}) {
			incarnations = append(incarnations, o)
		}
	}
	clusters := valuesOf(incarnations, func(m *Member) string { return m.ClusterID })
	if len(clusters) > 1 {
		return &refusal{reason: ForeignCluster, about: odd(clusters),
			err: &fault.Error{Code: fault.Denied, Op: "membership.Join",
				Msg: "nodes of different clusters do not mix: cluster " + spellOut(clusters, incarnations),
				Hint: "give each cluster a --cluster name of its own, or empty the data directory of a node " +
					"that is to change clusters"}}
	}
	members = merged(members, others)
	if r := sameEpoch(members); r != nil {
		return r
	}
	partitions := valuesOf(members, func(m *Member) string {
		if m.Partitions == 0 {
			return ""
		}
		return strconv.FormatUint(uint64(m.Partitions), 10)
	})
	if len(partitions) > 1 {
		return &refusal{reason: Partitions, about: odd(partitions),
			err: &fault.Error{Code: fault.Invalid, Op: "membership.Join",
				Msg:  "--partitions differs: " + spellOut(partitions, members),
				Hint: "start all with the same value; it is fixed when the cluster is made"}}
	}
	return sameFormat(members)
}

// sameFormat returns nil if every server can read the newest format of log entries that any member uses. Otherwise it
// returns a refusal that names a server that cannot read this format.
func sameFormat(members []Member) *refusal {
	var needs, old *Member
	for i := range members {
		if m := &members[i]; needs == nil || m.Format > needs.Format || m.Format == needs.Format &&
			m.NodeID < needs.NodeID {
			needs = m
		}
	}
	for i := range members {
		if m := &members[i]; m.Role == Server && m.NewestFormat < needs.Format &&
			(old == nil || m.NodeID < old.NodeID) {
			old = m
		}
	}
	if old == nil {
		return nil
	}
	return &refusal{reason: OlderFormat, about: old.NodeID,
		err: &fault.Error{Code: fault.Invalid, Op: "membership.Join",
			Msg: fmt.Sprintf("node %s (%s, version %s) understands log entries up to format %d, %s (%s, "+
				"version %s) holds format %d",
				old.NodeID, old.Gossip, old.Version, old.NewestFormat, needs.NodeID, needs.Gossip, needs.Version,
				needs.Format),
			Hint: fmt.Sprintf("run version %s of the program on %s, or a newer one", needs.Version, old.NodeID)}}
}

// sameEpoch returns nil if all servers of the cluster have the same epoch. Otherwise it returns a refusal that names a
// server with an older epoch. Each rescue of the cluster raises the epoch. A server with an older epoch was not part of
// the rescue, so its data has a different history.
func sameEpoch(members []Member) *refusal {
	var newest, old *Member
	for i := range members {
		if m := &members[i]; m.ClusterID != "" && m.Role == Server && (newest == nil || m.Epoch > newest.Epoch) {
			newest = m
		}
	}
	for i := range members {
		if m := &members[i]; m.ClusterID != "" && m.Role == Server && m.Epoch < newest.Epoch &&
			(old == nil || m.NodeID < old.NodeID) {
			old = m
		}
	}
	if old == nil {
		return nil
	}
	return &refusal{reason: OlderEpoch, about: old.NodeID, epoch: newest.Epoch,
		err: &fault.Error{Code: fault.Denied, Op: "membership.Join",
			Msg: fmt.Sprintf("node %s (%s) was left behind by a rescue of the cluster: it is at cluster epoch "+
				"%d, %s (%s) is at epoch %d",
				old.NodeID, old.Gossip, old.Epoch, newest.NodeID, newest.Gossip, newest.Epoch),
			Hint: fmt.Sprintf("move the data directory of %s away and start it again, it joins as a new server",
				old.NodeID)}}
}

// odd returns the id of a node that has the rarest value. The most frequent value comes first in values.
func odd(values []Value) string { return values[len(values)-1].Nodes[0] }

// spellOut formats values and their nodes, for example "3 on n1 (10.0.0.1:7946), n2; 5 on n3 (10.0.0.3:7946)". Only the
// first node of each value gets its gossip address.
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
	return formatValues(out)
}

// merged returns the members of both lists, with only the newest incarnation of each node id.
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

// overlap is two incarnations of one node id that both seem to be alive. This node learned of a before it learned of b.
type overlap struct{ a, b Member }

// overlaps returns pairs of incarnations, one from each list, that suggest a duplicate node id. The incarnations of a
// pair have the same node id, but different boot ids or addresses. If a running virtual machine was copied, only the
// addresses differ.
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

// refusal returns the refusal of a duplicate node id, whose incarnations both answer.
func (o *overlap) refusal() *refusal {
	return &refusal{reason: DuplicateID, about: o.a.NodeID,
		err: &fault.Error{Code: fault.Conflict, Op: "membership.Join",
			Msg: fmt.Sprintf("node id %s is used twice: by %s (since boot %s) and by %s (boot %s)", o.a.NodeID,
				o.a.Gossip, o.a.BootID, o.b.Gossip, o.b.BootID),
			Hint: "give every node a --node-id and a data directory of its own; a copied data directory is " +
				"the same node twice"}}
}

// memberOf decodes a node that memberlist reports. It returns a refusal if the facts of the node cannot be read.
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
