package topics

import (
	"context"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/records"
)

// lostAnswer is a leader whose answer is lost. The repeated call finds no leader.
type lostAnswer struct{ records.Access }

func (lostAnswer) Groups(context.Context) (uint32, error) { return 1, nil }
func (lostAnswer) Ask(context.Context, uint32, string, []byte) ([]byte, bool, error) {
	return nil, true, fault.New(fault.NotLeader, "test", "the group has no leader")
}

// An operation whose answer was lost may have been executed, so its error must not say that nothing was done.
func TestAdmin_ReportsALostAnswerAsIndeterminate(t *testing.T) {
	a := NewAdmin(lostAnswer{}, "s")
	ignore := func(Progress) error { return nil }
	for name, operation := range map[string]func() error{
		"replay":  func() error { return a.Replay(t.Context(), "orders", "g", 1, time.Time{}) },
		"remove":  func() error { return a.Remove(t.Context(), "orders", "", true, ignore) },
		"redrive": func() error { return a.Redrive(t.Context(), "orders-dead", "", ignore) },
	} {
		if err := operation(); !fault.Is(err, fault.Indeterminate) {
			t.Errorf("%s: %v, want %s", name, err, fault.Indeterminate)
		}
	}
}
