package peercalls

import (
	"encoding/binary"

	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/session"
)

// Form is the format version of the messages between nodes. Every message begins with this version, followed by the id
// of the group.
const Form = 1

// Message returns the beginning of a message about the group with the given id. The caller appends the rest.
func Message(id uint32) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(make([]byte, 0, 32), Form), uint64(id))
}

// Frame decodes a message, field by field.
type Frame struct{ lenprefix.Reader }

// NewFrame returns a frame that reads a message from its start.
func NewFrame(message []byte) *Frame { return &Frame{lenprefix.Reader{Rest: message}} }

// Position reads a log position.
func (f *Frame) Position() raftlog.Position {
	return raftlog.Position{Term: f.Uvarint(), Index: f.Uvarint()}
}

// AppendPosition appends an encoded log position to b.
func AppendPosition(b []byte, p raftlog.Position) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, p.Term), p.Index)
}

// Bits of an optional seen position.
const (
	seenThere = 1 << iota
	seenCommitted
)

// AppendSeen appends the encoding of s to b, without its group. s is the position that a session has seen in a group,
// or nil if it has seen none.
func AppendSeen(b []byte, s *session.Seen) []byte {
	if s == nil {
		return append(b, 0)
	}
	bits := byte(seenThere)
	if s.Committed {
		bits |= seenCommitted
	}
	return AppendPosition(append(b, bits), s.Pos)
}

// AppendOwn encodes a list of positions. An absent position ends the list.
func AppendOwn(b []byte, own []*session.Seen) []byte {
	for _, s := range own {
		b = AppendSeen(b, s)
	}
	return AppendSeen(b, nil)
}

// Own decodes a list that AppendOwn has encoded. group becomes the group of each position.
func (f *Frame) Own(group uint32) (out []*session.Seen) {
	for {
		s := f.Seen(group)
		if s == nil || f.Bad {
			return out
		}
		out = append(out, s)
	}
}

// Seen decodes a position that AppendSeen has encoded, or returns nil if there is none. The result gets the given
// group, which is not part of the encoding.
func (f *Frame) Seen(group uint32) *session.Seen {
	bits := f.Byte()
	if bits&seenThere == 0 {
		return nil
	}
	return &session.Seen{Group: group, Pos: f.Position(), Committed: bits&seenCommitted != 0}
}

// BoolByte encodes a condition as 1 or 0.
func BoolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}
