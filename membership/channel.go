package membership

import (
	"encoding/binary"
	"slices"
)

// Channel is data of another package that travels with the gossip. It is registered before
// Open under a number of its own, from 1 to 255, the same on every node. Its methods are
// called at the same time from several goroutines, some while memberlist waits: they must
// return at once.
type Channel interface {
	// Broadcasts returns messages to be sent with the next packet: each costs overhead bytes
	// more than its length, and all together at most limit bytes. It is asked once per packet
	// and receiver, so a message is returned several times to reach everybody.
	Broadcasts(overhead, limit int) [][]byte

	// Notify takes in a message of another node; the slice is the channel's to keep.
	Notify(msg []byte)

	// LocalState returns everything that another node should know; it is exchanged with one
	// member at a time, and at a join. At most some megabytes; nil is nothing.
	LocalState(join bool) []byte

	// MergeState takes in what LocalState of another node returned.
	MergeState(state []byte, join bool)
}

// mux puts several channels into the one that memberlist has: each message starts with one
// byte, the channel's number; states follow each other as number, uvarint length and bytes.
// Channels that a node does not know are skipped.
type mux struct {
	channels map[byte]Channel
	order    []byte
}

func newMux(own Channel, others map[byte]Channel) *mux {
	m := &mux{channels: map[byte]Channel{0: own}, order: []byte{0}}
	for number, c := range others {
		m.channels[number] = c
		m.order = append(m.order, number)
	}
	slices.Sort(m.order)
	return m
}

// GetBroadcasts implements memberlist.Delegate.
func (m *mux) GetBroadcasts(overhead, limit int) [][]byte {
	var out [][]byte
	for _, number := range m.order {
		if limit <= overhead+1 {
			break
		}
		for _, msg := range m.channels[number].Broadcasts(overhead+1, limit) {
			framed := append([]byte{number}, msg...)
			limit -= len(framed) + overhead
			out = append(out, framed)
		}
	}
	return out
}

// NotifyMsg implements memberlist.Delegate.
func (m *mux) NotifyMsg(msg []byte) {
	if len(msg) == 0 {
		return
	}
	if c := m.channels[msg[0]]; c != nil {
		c.Notify(slices.Clone(msg[1:]))
	}
}

// LocalState implements memberlist.Delegate.
func (m *mux) LocalState(join bool) []byte {
	var out []byte
	for _, number := range m.order {
		if state := m.channels[number].LocalState(join); state != nil {
			out = binary.AppendUvarint(append(out, number), uint64(len(state)))
			out = append(out, state...)
		}
	}
	return out
}

// MergeRemoteState implements memberlist.Delegate. What follows damage is dropped.
func (m *mux) MergeRemoteState(b []byte, join bool) {
	for len(b) > 0 {
		number := b[0]
		state, rest, ok := cutField(b[1:])
		if !ok {
			return
		}
		if c := m.channels[number]; c != nil {
			c.MergeState(state, join)
		}
		b = rest
	}
}
