package membership

import (
	"encoding/binary"
	"slices"
)

// Channel sends and receives data of another package in gossip messages. Options.Channels assigns each Channel a number
// from 1 to 255, which must be the same on every node. The methods may be called concurrently. They must not block,
// because memberlist may hold a lock during the call.
type Channel interface {
	// Broadcasts returns messages for the next packet. Each message takes its length plus overhead bytes, and all
	// together at most limit bytes. Each packet goes to one receiver. To reach every member, a message must be
	// returned by several calls.
	Broadcasts(overhead, limit int) [][]byte

	// Notify receives a message of another node. The slice belongs to the channel.
	Notify(msg []byte)

	// LocalState returns everything that another node should know, at most a few megabytes. Two members exchange
	// their states at a join, when the parameter join is true, and at regular intervals. nil means that there is
	// nothing to send.
	LocalState(join bool) []byte

	// MergeState receives the LocalState of another node.
	MergeState(state []byte, join bool)
}

// mux passes the callbacks of memberlist.Delegate to the channels. A broadcast message begins with one byte, the number
// of its channel. The exchanged state is a sequence of entries: channel number, length as a uvarint, data. A node skips
// the data of channels that it does not have.
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

// MergeRemoteState implements memberlist.Delegate. It stops at the first malformed entry.
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
