package raftfsm

import (
	"encoding/binary"

	"github.com/quorate/quorate/internal/fields"
	"github.com/quorate/quorate/raftfsm/group"
)

// ForwardVersion is the newest form of the messages between nodes. Every message begins with
// its form and the group. Of MethodPropose the first form carries one request, the second
// several; the other messages have the first form alone.
const ForwardVersion = formBatches

// The forms of messages.
const (
	formFirst   = 1
	formBatches = 2
)

// message begins a call about a group.
func message(form uint64, id uint32) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(make([]byte, 0, 32), form), uint64(id))
}

// frame reads a message.
type frame struct{ fields.Reader }

func newFrame(message []byte) *frame { return &frame{fields.Reader{Rest: message}} }

// position reads a place in a log.
func (f *frame) position() group.Position {
	return group.Position{Term: f.Uvarint(), Index: f.Uvarint()}
}

func appendPosition(b []byte, p group.Position) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, p.Term), p.Index)
}

// Bits of an optional place that was seen.
const (
	seenThere = 1 << iota
	seenCommitted
)

// appendSeen encodes what was seen of a group; nil is nothing.
func appendSeen(b []byte, s *seen) []byte {
	if s == nil {
		return append(b, 0)
	}
	bits := byte(seenThere)
	if s.committed {
		bits |= seenCommitted
	}
	return appendPosition(append(b, bits), s.pos)
}

// appendOwn encodes several, up to an absent one.
func appendOwn(b []byte, own []*seen) []byte {
	for _, s := range own {
		b = appendSeen(b, s)
	}
	return appendSeen(b, nil)
}

// own undoes appendOwn.
func (f *frame) own(group uint32) (out []*seen) {
	for {
		s := f.seen(group)
		if s == nil || f.Bad {
			return out
		}
		out = append(out, s)
	}
}

// seen undoes appendSeen.
func (f *frame) seen(group uint32) *seen {
	bits := f.Byte()
	if bits&seenThere == 0 {
		return nil
	}
	return &seen{group: group, pos: f.position(), committed: bits&seenCommitted != 0}
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}
