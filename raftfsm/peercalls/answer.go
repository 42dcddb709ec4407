package peercalls

import (
	"encoding/binary"
	"errors"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
)

// AppendAnswer appends the encoded outcome of a proposal to b.
func AppendAnswer(b []byte, a *group.Answer) []byte {
	b = binary.AppendUvarint(b, a.Term)
	b = binary.AppendUvarint(b, a.Index)
	b = append(b, byte(a.Result.Outcome), BoolByte(a.Result.Replayed), BoolByte(a.Result.More))
	b = binary.AppendUvarint(b, a.Result.Index)
	b = binary.AppendUvarint(b, uint64(a.Result.Expired))
	b = binary.AppendUvarint(b, uint64(len(a.Result.Revisions)))
	for _, r := range a.Result.Revisions {
		b = binary.AppendUvarint(b, r)
	}
	return append(b, a.Result.Key...)
}

// readAnswer decodes the answer to a proposal. It returns fault.Indeterminate if the answer cannot be decoded,
// because the proposal may have been applied.
func readAnswer(b []byte) (group.Answer, error) {
	r := NewFrame(b)
	a := group.Answer{Position: r.Position()}
	a.Result.Outcome = kv.Outcome(r.Byte())
	a.Result.Replayed, a.Result.More = r.Byte() == 1, r.Byte() == 1
	a.Result.Index, a.Result.Expired = r.Uvarint(), int(r.Uvarint())
	for range r.Count() {
		a.Result.Revisions = append(a.Result.Revisions, r.Uvarint())
	}
	a.Result.Key = string(r.All())
	if r.Bad {
		return group.Answer{}, &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.forward",
			Msg: "the leader's answer cannot be read", Err: errors.New("cut off")}
	}
	return a, nil
}
