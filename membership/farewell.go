package membership

import (
	"encoding/binary"
	"slices"

	"github.com/hashicorp/memberlist"
)

// farewells spreads the announcements of leaving nodes. Memberlist alone does not report whether a member left or
// failed. Therefore a leaving node sends an announcement to every member, and gossip repeats it. farewells is the
// Channel with number 0.
//
// A broadcast message is one version byte and a gossip name. The exchanged state is one version byte and the gossip
// names of all nodes that left, each preceded by its length as a uvarint.
type farewells struct {
	table *table
	queue *memberlist.TransmitLimitedQueue
}

const farewellVersion = 1

func newFarewells(t *table, retransmits int) *farewells {
	members := func() int { return len(t.roster().members) }
	return &farewells{table: t, queue: &memberlist.TransmitLimitedQueue{NumNodes: members,
		RetransmitMult: retransmits}}
}

// say records that an incarnation left, and returns the encoded announcement. If the announcement is new to this node,
// say also queues it for gossip. For this node itself, only Leave may call say.
func (f *farewells) say(name string) []byte {
	msg := append([]byte{farewellVersion}, name...)
	if f.table.farewell(name) {
		f.queue.QueueBroadcast(farewell{name, append([]byte(nil), msg...)})
	}
	return msg
}

// Broadcasts implements Channel.
func (f *farewells) Broadcasts(overhead, limit int) [][]byte {
	return f.queue.GetBroadcasts(overhead, limit)
}

// Notify implements Channel.
func (f *farewells) Notify(msg []byte) {
	if name, ok := decodeFarewell(msg); ok && name != f.table.self {
		f.say(name)
	}
}

func decodeFarewell(msg []byte) (name string, ok bool) {
	if len(msg) < 2 || msg[0] != farewellVersion || len(msg) > 1+maxNodeID+1+bootIDLen {
		return "", false
	}
	return string(msg[1:]), true
}

// LocalState implements Channel.
func (f *farewells) LocalState(bool) []byte { return encodeFarewells(f.table.leftNames()) }

func encodeFarewells(names []string) []byte {
	if len(names) == 0 {
		return nil
	}
	b := []byte{farewellVersion}
	for _, name := range names {
		b = binary.AppendUvarint(b, uint64(len(name)))
		b = append(b, name...)
	}
	return b
}

// MergeState implements Channel.
func (f *farewells) MergeState(state []byte, _ bool) {
	for _, name := range decodeFarewells(state) {
		if name != f.table.self {
			f.table.farewell(name)
		}
	}
}

// decodeFarewells returns the gossip names in b. It stops at the first damaged name.
func decodeFarewells(b []byte) []string {
	if len(b) == 0 || b[0] != farewellVersion {
		return nil
	}
	var names []string
	for b = b[1:]; len(b) > 0; {
		name, rest, ok := cutField(b)
		if !ok || len(name) == 0 || len(name) > maxNodeID+1+bootIDLen {
			return names
		}
		names, b = append(names, string(name)), rest
	}
	return slices.Clip(names)
}

// farewell is one queued announcement that an incarnation left.
type farewell struct {
	name string
	msg  []byte
}

// Invalidates implements memberlist.Broadcast.
func (f farewell) Invalidates(memberlist.Broadcast) bool { return false }

// Name implements memberlist.NamedBroadcast. It returns the gossip name of the incarnation that left. If another
// announcement of this incarnation is queued, memberlist replaces it.
func (f farewell) Name() string { return f.name }

// Message implements memberlist.Broadcast.
func (f farewell) Message() []byte { return f.msg }

// Finished implements memberlist.Broadcast.
func (f farewell) Finished() {}
