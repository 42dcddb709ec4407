package raftfsm

import (
	"encoding/binary"

	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/session"
)

// ForwardVersion is the newest version of the message format between nodes. Every message begins with its version and
// the id of the group. In version 2, one MethodPropose message may contain several requests. All other messages have
// version 1.
const ForwardVersion = formBatches

// The forms of messages.
const (
	formFirst   = 1
	formBatches = 2
)

// message begins the payload of a call about a group.
func message(form uint64, id uint32) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(make([]byte, 0, 32), form), uint64(id))
}

// frame decodes a message.
type frame struct{ lenprefix.Reader }

func newFrame(message []byte) *frame { return &frame{lenprefix.Reader{Rest: message}} }

// position reads a log position.
func (f *frame) position() raftlog.Position {
	return raftlog.Position{Term: f.Uvarint(), Index: f.Uvarint()}
}

func appendPosition(b []byte, p raftlog.Position) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, p.Term), p.Index)
}

// Bits of an optional seen position.
const (
	seenThere = 1 << iota
	seenCommitted
)

// appendSeen encodes what was seen of a group; nil means nothing.
func appendSeen(b []byte, s *session.Seen) []byte {
	if s == nil {
		return append(b, 0)
	}
	bits := byte(seenThere)
	if s.Committed {
		bits |= seenCommitted
	}
	return appendPosition(append(b, bits), s.Pos)
}

// appendOwn encodes a list of positions, ended by an absent one.
func appendOwn(b []byte, own []*session.Seen) []byte {
	for _, s := range own {
		b = appendSeen(b, s)
	}
	return appendSeen(b, nil)
}

// own decodes what appendOwn encodes.
func (f *frame) own(group uint32) (out []*session.Seen) {
	for {
		s := f.seen(group)
		if s == nil || f.Bad {
			return out
		}
		out = append(out, s)
	}
}

// seen decodes what appendSeen encodes.
func (f *frame) seen(group uint32) *session.Seen {
	bits := f.Byte()
	if bits&seenThere == 0 {
		return nil
	}
	return &session.Seen{Group: group, Pos: f.position(), Committed: bits&seenCommitted != 0}
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}
