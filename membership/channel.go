package membership

import (
	"encoding/binary"
	"slices"
)

// Channel sends and receives data of another package together with the gossip. It is registered in
// Options under a number from 1 to 255, which is the same on every node. Its methods may be called
// concurrently, and while memberlist holds a lock. So they must return at once.
type Channel interface {
	// Broadcasts returns messages for the next packet. Each costs overhead bytes more than its
	// length, and all together cost at most limit bytes. It is called once per packet and receiver,
	// so it returns a message several times to reach every member.
	Broadcasts(overhead, limit int) [][]byte

	// Notify receives a message of another node. The slice belongs to the channel.
	Notify(msg []byte)

	// LocalState returns everything that another node should know, at most some megabytes. It is
	// exchanged with one member at a time, and at a join. nil means nothing.
	LocalState(join bool) []byte

	// MergeState receives the LocalState of another node.
	MergeState(state []byte, join bool)
}

// mux is the delegate of memberlist for all channels. A broadcast message begins with one byte, the
// number of its channel. The state that nodes exchange is a sequence of entries: channel number,
// uvarint length, bytes. Data of unknown channels is skipped.
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

// MergeRemoteState implements memberlist.Delegate. It drops what follows a damaged field.
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
