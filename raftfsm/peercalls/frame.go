package peercalls

import (
	"encoding/binary"

	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/session"
)

// Form is the version of the messages between nodes. Every message begins with its version and the id of the group.
const Form = 1

// Message begins the payload of a call about a group.
func Message(id uint32) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(make([]byte, 0, 32), Form), uint64(id))
}

// Frame decodes a message.
type Frame struct{ lenprefix.Reader }

// NewFrame returns a frame that reads a message from its start.
func NewFrame(message []byte) *Frame { return &Frame{lenprefix.Reader{Rest: message}} }

// Position reads a log position.
func (f *Frame) Position() raftlog.Position {
	return raftlog.Position{Term: f.Uvarint(), Index: f.Uvarint()}
}

// AppendPosition encodes a log position.
func AppendPosition(b []byte, p raftlog.Position) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, p.Term), p.Index)
}

// Bits of an optional seen position.
const (
	seenThere = 1 << iota
	seenCommitted
)

// AppendSeen encodes what was seen of a group; nil means nothing.
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

// AppendOwn encodes a list of positions, ended by an absent one.
func AppendOwn(b []byte, own []*session.Seen) []byte {
	for _, s := range own {
		b = AppendSeen(b, s)
	}
	return AppendSeen(b, nil)
}

// Own decodes what AppendOwn encodes.
func (f *Frame) Own(group uint32) (out []*session.Seen) {
	for {
		s := f.Seen(group)
		if s == nil || f.Bad {
			return out
		}
		out = append(out, s)
	}
}

// Seen decodes what AppendSeen encodes.
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
