package actors_test

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/api/actors"
)

// memory is an actors.Holdings that is lost with the test.
type memory struct{ held bool }

func (m *memory) Begin(string) (bool, error) {
	held := m.held
	m.held = true
	return held, nil
}

func (m *memory) End(string) error {
	m.held = false
	return nil
}

// After an unclean stop of a node, its application may still hold actors in memory. The host deactivates each actor in
// the application before the first activation of the actor.
func TestHoldings_DeactivatesActorsOfAnEarlierProcess(t *testing.T) {
	for name, c := range map[string]struct {
		held    bool
		deleted string // before the node closes
		after   bool   // held after the node has closed
	}{
		"after a clean stop": {false, "[]", false},
		"after a kill":       {true, "[1 after turn 0]", true},
	} {
		t.Run(name, func(t *testing.T) {
			m := &memory{held: c.held}
			inWorldWithHoldings(t, plain, m, func(t *testing.T, w *world) {
				for range 2 {
					if err := <-w.call(t.Context(), "add", ""); err != nil {
						t.Error(err)
					}
				}
				if got := w.deletions(); got != c.deleted {
					t.Errorf("deactivated %s, want %s", got, c.deleted)
				}
				if !m.held {
					t.Error("nothing is recorded while the actor is active")
				}
			})
			if m.held != c.after {
				t.Errorf("held after the stop: %v", m.held)
			}
		})
	}
}

// An application that does not answer DELETE may still hold its actor, so the record stays.
func TestHoldings_StaysIfTheApplicationDoesNotAnswer(t *testing.T) {
	m := &memory{}
	inWorldWithHoldings(t, plain, m, func(t *testing.T, w *world) {
		if err := <-w.call(t.Context(), "add", ""); err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		w.hangs = true
		w.mu.Unlock()
	})
	if !m.held {
		t.Error("the record was removed")
	}
}

// A call waits until the application has dropped the actor that an earlier process of the node left in its memory.
func TestHoldings_RefusesTheTurnUntilTheActorIsDropped(t *testing.T) {
	m := &memory{held: true}
	inWorldWithHoldings(t, plain, m, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.hangs = true
		w.mu.Unlock()
		first := w.call(t.Context(), "add", "")
		if got := w.turns(); got != "" {
			t.Errorf("turns %q", got)
		}
		w.mu.Lock()
		w.hangs = false
		w.mu.Unlock()
		if err := <-first; err != nil {
			t.Error(err)
		}
		if got := w.deletions() + w.turns(); got != "[1 after turn 0]add" {
			t.Error(got)
		}
	})
}

func (w *world) deletions() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(w.deleted)
}

var _ actors.Holdings = (*memory)(nil)
