package faulttest

import (
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// turnAt returns a turn of actor "a" that writes, with an acknowledged result.
func turnAt(begin, end time.Duration, epoch, read uint64, node, what string) *actorTurn {
	return &actorTurn{actor: "a", node: node, life: 1, epoch: epoch, what: what, begin: begin, sent: begin + 1,
		end: end, read: read, result: Done}
}

// ending returns a turn with another result.
func ending(t *actorTurn, result Outcome) *actorTurn {
	t.result = result
	return t
}

func paused(t *actorTurn) *actorTurn {
	t.paused = true
	return t
}

// The check must find every history that breaks a guarantee.
func TestActorHistory_FindsViolations(t *testing.T) {
	one := turnAt(0, 5*ms, 1, 0, "n1", "c1")
	for name, c := range map[string]struct {
		turns []*actorTurn
		calls []actorCall
		final uint64
		says  string // empty = no violation
	}{
		"one after the other": {turns: []*actorTurn{one, turnAt(6*ms, 9*ms, 1, 1, "n1", "c2"),
			turnAt(10*ms, 12*ms, 2, 2, "n2", "c3")}, final: 3},
		"an unknown write that counts": {turns: []*actorTurn{one,
			ending(turnAt(6*ms, 9*ms, 1, 1, "n1", "c2"), Unknown)}, final: 2},
		"an unknown write that does not count": {turns: []*actorTurn{one,
			ending(turnAt(6*ms, 9*ms, 1, 1, "n1", "c2"), Unknown)}, final: 1},
		"a lost increment": {turns: []*actorTurn{one, turnAt(6*ms, 9*ms, 2, 0, "n2", "c2")},
			says: "is lost: two turns wrote 1"},
		"a stale read": {turns: []*actorTurn{one, ending(turnAt(6*ms, 9*ms, 2, 0, "n2", "c2"), Refused)},
			says: "read 0 after 1 was acknowledged"},
		"a last value that is too small": {turns: []*actorTurn{one}, final: 0, says: "counted to 0"},
		"a refused write that counts": {turns: []*actorTurn{one,
			ending(turnAt(6*ms, 9*ms, 1, 1, "n1", "c2"), Refused)}, final: 2, says: "counted to 2"},
		"two epochs that write": {turns: []*actorTurn{{actor: "a", node: "n1", epoch: 1, begin: 0, sent: 8 * ms,
			end: 9 * ms, read: 1, result: Done}, turnAt(5*ms, 6*ms, 2, 0, "n2", "c2")}, final: 2,
			says: "two epochs write"},
		"an earlier epoch that writes later": {turns: []*actorTurn{turnAt(0, ms, 2, 0, "n2", "c2"),
			turnAt(2*ms, 3*ms, 1, 1, "n1", "c1")}, final: 2, says: "epoch 1 wrote after epoch 2"},
		"a write that is acknowledged late": {turns: []*actorTurn{turnAt(0, 9*ms, 1, 0, "n1", "c1"),
			turnAt(5*ms, 6*ms, 2, 1, "n2", "c2")}, final: 2},
		"turns of one epoch that overlap": {turns: []*actorTurn{one, ending(turnAt(4*ms, 9*ms, 1, 1, "n1", "c2"),
			Refused)}, says: "turns overlap (epoch 1)"},
		"turns at one process that overlap": {turns: []*actorTurn{one, ending(turnAt(4*ms, 9*ms, 2, 1, "n1", "c2"),
			Refused)}, says: "turns overlap (n1 1)"},
		"an owner that goes on": {turns: []*actorTurn{turnAt(0, ms, 2, 0, "n2", "c1"),
			ending(turnAt(3*time.Second, 3001*ms, 1, 1, "n1", "c2"), Refused)}, says: "a former owner began a turn"},
		"an owner that was paused": {turns: []*actorTurn{turnAt(0, ms, 2, 0, "n2", "c1"),
			paused(ending(turnAt(3*time.Second, 3001*ms, 1, 1, "n1", "c2"), Refused))}, final: 1},
		"a call that is delivered twice": {turns: []*actorTurn{one, turnAt(6*ms, 9*ms, 1, 1, "n1", "c1")},
			calls: []actorCall{{id: "c1", actor: "a"}}, final: 2, says: "is delivered 2 times"},
		"a refused call that is delivered": {turns: []*actorTurn{one}, final: 1,
			calls: []actorCall{{id: "c1", actor: "a", refused: "no_host"}}, says: "was delivered"},
		"a wrong answer": {turns: []*actorTurn{one}, final: 1, calls: []actorCall{{id: "c1", actor: "a", answered: 2}},
			says: "has no turn with this result"},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewActorHistory()
			for _, turn := range c.turns {
				h.addTurn(turn)
			}
			for i := range c.calls {
				h.addCall(&c.calls[i])
			}
			if c.final != 0 || strings.Contains(c.says, "counted") {
				h.ended("a", c.final)
			}
			bad := strings.Join(h.Check(), "\n")
			if c.says == "" && bad != "" || !strings.Contains(bad, c.says) {
				t.Errorf("found %q, want %q", bad, c.says)
			}
		})
	}
}

func TestDueHistory_FindsViolations(t *testing.T) {
	for name, c := range map[string]struct {
		work    dueWork
		ticks   []string // ids, one each 100 ms from the due time on
		early   time.Duration
		missing bool
		says    string // empty = no violation
	}{
		"fired":        {work: dueWork{stored: 1, kept: true}, ticks: []string{"1.1", "1.1", "1.2"}},
		"never fired":  {work: dueWork{stored: 1, kept: true}, missing: true},
		"not stored":   {work: dueWork{kept: true}},
		"early":        {work: dueWork{stored: 1}, ticks: []string{"1.1"}, early: 20 * ms, says: "early"},
		"deleted":      {work: dueWork{stored: 1, removed: 500 * ms}},
		"not deleted":  {work: dueWork{stored: 1, removed: 500 * ms}, ticks: []string{"1.1"}, says: "1 ticks"},
		"under way":    {work: dueWork{stored: 1, removed: 1050 * ms}, ticks: []string{"1.1", "1.2", "1.2"}},
		"stored again": {work: dueWork{stored: 1, removed: 500 * ms, attempts: 2}, ticks: []string{"1.1"}},
		"not under way": {work: dueWork{stored: 1, removed: 1050 * ms}, ticks: []string{"1", "2", "3", "4"},
			says: "3 ticks"},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewDueHistory()
			w := c.work
			w.due, w.attempts = time.Second, max(w.attempts, 1)
			h.change("w", func(to *dueWork) { *to = w })
			for i, id := range c.ticks {
				h.addTick(dueTick{name: "w", id: id, begin: time.Second - c.early + time.Duration(i)*100*ms})
			}
			bad := strings.Join(h.Check(), "\n")
			if c.says == "" && bad != "" || !strings.Contains(bad, c.says) {
				t.Errorf("found %q, want %q", bad, c.says)
			}
			if got := len(h.missing()) > 0; got != c.missing {
				t.Errorf("missing = %t", got)
			}
		})
	}
}

func TestActorHistory_CountsActorsByTheNodeOfTheirNewestTurn(t *testing.T) {
	h := NewActorHistory()
	other := turnAt(0, ms, 1, 0, "n1", "c3")
	other.actor = "b"
	for _, turn := range []*actorTurn{turnAt(5*ms, 6*ms, 2, 1, "n2", "c2"), turnAt(0, ms, 1, 0, "n1", "c1"), other} {
		h.addTurn(turn)
	}
	if got := h.Owned(); len(got) != 2 || got["n1"] != 1 || got["n2"] != 1 {
		t.Errorf("actors by node are %v, want one at n1 and one at n2", got)
	}
}
