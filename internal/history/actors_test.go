package history

import (
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// turnAt returns a turn of actor "a" that writes, with an acknowledged result.
func turnAt(begin, end time.Duration, epoch, read uint64, node, what string) *Turn {
	return &Turn{Actor: "a", Node: node, Life: 1, Epoch: epoch, What: what, Begin: begin, Sent: begin + 1,
		End: end, Read: read, Result: Written}
}

// ending returns a turn with another result.
func ending(t *Turn, result Result) *Turn {
	t.Result = result
	return t
}

func paused(t *Turn) *Turn {
	t.Paused = true
	return t
}

// TestActors_FindsViolations checks that each history that breaks a guarantee is found, and that other histories pass.
func TestActors_FindsViolations(t *testing.T) {
	one := turnAt(0, 5*ms, 1, 0, "n1", "c1")
	for name, c := range map[string]struct {
		turns []*Turn
		calls []ActorCall
		final uint64
		says  string // empty = no violation
	}{
		"one after the other": {turns: []*Turn{one, turnAt(6*ms, 9*ms, 1, 1, "n1", "c2"),
			turnAt(10*ms, 12*ms, 2, 2, "n2", "c3")}, final: 3},
		"an unknown write that counts": {turns: []*Turn{one,
			ending(turnAt(6*ms, 9*ms, 1, 1, "n1", "c2"), Unknown)}, final: 2},
		"an unknown write that does not count": {turns: []*Turn{one,
			ending(turnAt(6*ms, 9*ms, 1, 1, "n1", "c2"), Unknown)}, final: 1},
		"a lost increment": {turns: []*Turn{one, turnAt(6*ms, 9*ms, 2, 0, "n2", "c2")},
			says: "is lost: two turns wrote 1"},
		"a stale read": {turns: []*Turn{one, ending(turnAt(6*ms, 9*ms, 2, 0, "n2", "c2"), Refused)},
			says: "read 0 after 1 was acknowledged"},
		"a last value that is too small": {turns: []*Turn{one}, final: 0, says: "counted to 0"},
		"a refused write that counts": {turns: []*Turn{one,
			ending(turnAt(6*ms, 9*ms, 1, 1, "n1", "c2"), Refused)}, final: 2, says: "counted to 2"},
		"two epochs that write": {turns: []*Turn{{Actor: "a", Node: "n1", Epoch: 1, Begin: 0, Sent: 8 * ms,
			End: 9 * ms, Read: 1, Result: Written}, turnAt(5*ms, 6*ms, 2, 0, "n2", "c2")}, final: 2,
			says: "two epochs write"},
		"an earlier epoch that writes later": {turns: []*Turn{turnAt(0, ms, 2, 0, "n2", "c2"),
			turnAt(2*ms, 3*ms, 1, 1, "n1", "c1")}, final: 2, says: "epoch 1 wrote after epoch 2"},
		"a write that is acknowledged late": {turns: []*Turn{turnAt(0, 9*ms, 1, 0, "n1", "c1"),
			turnAt(5*ms, 6*ms, 2, 1, "n2", "c2")}, final: 2},
		"turns of one epoch that overlap": {turns: []*Turn{one, ending(turnAt(4*ms, 9*ms, 1, 1, "n1", "c2"),
			Refused)}, says: "turns overlap (epoch 1)"},
		"turns at one process that overlap": {turns: []*Turn{one, ending(turnAt(4*ms, 9*ms, 2, 1, "n1", "c2"),
			Refused)}, says: "turns overlap (n1 1)"},
		"an owner that goes on": {turns: []*Turn{turnAt(0, ms, 2, 0, "n2", "c1"),
			ending(turnAt(3*time.Second, 3001*ms, 1, 1, "n1", "c2"), Refused)}, says: "a former owner began a turn"},
		"an owner that was paused": {turns: []*Turn{turnAt(0, ms, 2, 0, "n2", "c1"),
			paused(ending(turnAt(3*time.Second, 3001*ms, 1, 1, "n1", "c2"), Refused))}, final: 1},
		"a call that is delivered twice": {turns: []*Turn{one, turnAt(6*ms, 9*ms, 1, 1, "n1", "c1")},
			calls: []ActorCall{{ID: "c1", Actor: "a"}}, final: 2, says: "is delivered 2 times"},
		"a refused call that is delivered": {turns: []*Turn{one}, final: 1,
			calls: []ActorCall{{ID: "c1", Actor: "a", Refused: "no_host"}}, says: "was delivered"},
		"a wrong answer": {turns: []*Turn{one}, final: 1, calls: []ActorCall{{ID: "c1", Actor: "a", Answered: 2}},
			says: "has no turn with this result"},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewActors()
			for _, turn := range c.turns {
				h.AddTurn(turn)
			}
			for i := range c.calls {
				h.AddCall(&c.calls[i])
			}
			if c.final != 0 || strings.Contains(c.says, "counted") {
				h.Ended("a", c.final)
			}
			bad := strings.Join(h.Check(), "\n")
			if c.says == "" && bad != "" || !strings.Contains(bad, c.says) {
				t.Errorf("found %q, want %q", bad, c.says)
			}
		})
	}
}

func TestDue_FindsViolations(t *testing.T) {
	for name, c := range map[string]struct {
		work    Work
		ticks   []string // ids, one each 100 ms from the due time on
		early   time.Duration
		missing bool
		says    string // empty = no violation
	}{
		"fired":        {work: Work{Stored: 1, Kept: true}, ticks: []string{"1.1", "1.1", "1.2"}},
		"never fired":  {work: Work{Stored: 1, Kept: true}, missing: true},
		"not stored":   {work: Work{Kept: true}},
		"early":        {work: Work{Stored: 1}, ticks: []string{"1.1"}, early: 20 * ms, says: "early"},
		"deleted":      {work: Work{Stored: 1, Removed: 500 * ms}},
		"not deleted":  {work: Work{Stored: 1, Removed: 500 * ms}, ticks: []string{"1.1"}, says: "1 ticks"},
		"under way":    {work: Work{Stored: 1, Removed: 1050 * ms}, ticks: []string{"1.1", "1.2", "1.2"}},
		"stored again": {work: Work{Stored: 1, Removed: 500 * ms, Attempts: 2}, ticks: []string{"1.1"}},
		"not under way": {work: Work{Stored: 1, Removed: 1050 * ms}, ticks: []string{"1", "2", "3", "4"},
			says: "3 ticks"},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewDue()
			w := c.work
			w.Due, w.Attempts = time.Second, max(w.Attempts, 1)
			h.Change("w", func(to *Work) { *to = w })
			for i, id := range c.ticks {
				h.AddTick(Tick{Name: "w", ID: id, Begin: time.Second - c.early + time.Duration(i)*100*ms})
			}
			bad := strings.Join(h.Check(), "\n")
			if c.says == "" && bad != "" || !strings.Contains(bad, c.says) {
				t.Errorf("found %q, want %q", bad, c.says)
			}
			if got := len(h.Missing()) > 0; got != c.missing {
				t.Errorf("missing = %t", got)
			}
		})
	}
}

func TestActors_CountsActorsByTheNodeOfTheirNewestTurn(t *testing.T) {
	h := NewActors()
	other := turnAt(0, ms, 1, 0, "n1", "c3")
	other.Actor = "b"
	for _, turn := range []*Turn{turnAt(5*ms, 6*ms, 2, 1, "n2", "c2"), turnAt(0, ms, 1, 0, "n1", "c1"), other} {
		h.AddTurn(turn)
	}
	if got := h.Owned(); len(got) != 2 || got["n1"] != 1 || got["n2"] != 1 {
		t.Errorf("actors by node are %v, want one at n1 and one at n2", got)
	}
}
