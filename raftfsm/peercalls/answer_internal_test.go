package peercalls

import (
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

func TestFrame_TruncatedAnswerIsIndeterminate(t *testing.T) {
	a := group.Answer{Position: raftlog.Position{Term: 1, Index: 5}}
	whole := append(lenprefix.Append([]byte{0}, AppendAnswer(nil, &a)), lenprefix.Append([]byte{1},
		fault.Marshal(fault.New(fault.NotLeader, "x", "y")))...)
	out := readOutcomes(whole, nil, 2)
	if out[0].err != nil || out[0].answer.Position != a.Position || !fault.Is(out[1].err, fault.NotLeader) {
		t.Errorf("%+v", out)
	}
	for cut := range len(whole) {
		out := readOutcomes(whole[:cut], nil, 2)
		if !fault.Is(out[1].err, fault.Indeterminate) {
			t.Fatalf("cut at %d: %v", cut, out[1].err)
		}
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add([]byte{2, 1, 'a', 1, 1, 0, 0, 0})
	f.Add(AppendRoutes(nil, []GroupRoute{{Leader: "a", Term: 1, Reads: true}}))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = readRoutes(b)
		_ = readOutcomes(b, nil, 3)
	})
}
