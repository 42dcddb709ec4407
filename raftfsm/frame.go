package raftfsm

import (
	"encoding/binary"

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

// frame reads a message; bad is set by the first part that is missing.
type frame struct {
	b   []byte
	bad bool
}

func (f *frame) uvarint() uint64 {
	v, n := binary.Uvarint(f.b)
	if n <= 0 {
		f.bad, f.b = true, nil
		return 0
	}
	f.b = f.b[n:]
	return v
}

func (f *frame) byte() byte {
	if len(f.b) == 0 {
		f.bad = true
		return 0
	}
	v := f.b[0]
	f.b = f.b[1:]
	return v
}

// bytes reads a length and so many bytes, which alias the message.
func (f *frame) bytes() []byte {
	n := f.uvarint()
	if n > uint64(len(f.b)) {
		f.bad, f.b = true, nil
		return nil
	}
	v := f.b[:n:n]
	f.b = f.b[n:]
	return v
}

func (f *frame) string() string { return string(f.bytes()) }

func (f *frame) rest() []byte {
	v := f.b
	f.b = nil
	return v
}

// position reads a place in a log.
func (f *frame) position() group.Position {
	return group.Position{Term: f.uvarint(), Index: f.uvarint()}
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
		if s == nil || f.bad {
			return out
		}
		out = append(out, s)
	}
}

// seen undoes appendSeen.
func (f *frame) seen(group uint32) *seen {
	bits := f.byte()
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
