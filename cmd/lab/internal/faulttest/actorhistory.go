package faulttest

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// actorTurn is one turn of an actor, as the application saw it. All times are durations since the start of the
// history. A turn of the method add reads the counter and writes the next number. All other turns write nothing.
type actorTurn struct {
	actor  string
	node   string // at which the application runs
	life   int    // process id of the node
	epoch  uint64
	what   string // id of the call, or name of the reminder
	begin  time.Duration
	sent   time.Duration // when it sent its write; 0 = never
	end    time.Duration // of the turn, after the answer to its write
	read   uint64        // 0 = there was no counter
	result Outcome       // of the write; 0 = it sent none
	paused bool          // the node was paused shortly before the turn began
}

// actorCall is one call of an actor, as its client saw it.
type actorCall struct {
	id, actor, node string
	begin, end      time.Duration
	answered        uint64 // the number that was written; 0 = the call was not acknowledged
	refused         string // the reason, if the node reported that the application has not got the call
}

// lateTurn is how long an earlier owner of an actor may still begin turns after a later owner has begun one. By design
// no such turn begins, because the lease of the earlier owner ends 400 ms before. But the process may be suspended
// after it has checked its lease and before it calls the application.
const lateTurn = 2 * time.Second

// ActorHistory records the turns of actors and the calls of their clients. It is safe for concurrent use.
type ActorHistory struct {
	begun time.Time

	mu    sync.Mutex
	turns []*actorTurn // guarded by mu, as are the fields below
	calls []actorCall
	final map[string]uint64 // by actor
}

// NewActorHistory starts a history.
func NewActorHistory() *ActorHistory {
	return &ActorHistory{begun: time.Now(), final: map[string]uint64{}}
}

func (h *ActorHistory) now() time.Duration { return time.Since(h.begun) }

func (h *ActorHistory) addTurn(t *actorTurn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turns = append(h.turns, t)
}

func (h *ActorHistory) addCall(c *actorCall) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, *c)
}

// ended records the last value of a counter.
func (h *ActorHistory) ended(actor string, value uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.final[actor] = value
}

// Size returns the number of turns.
func (h *ActorHistory) Size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.turns)
}

// Owned returns how many actors had their newest turn at each node, by the name of the node.
func (h *ActorHistory) Owned() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	newest := map[string]*actorTurn{}
	for _, t := range h.turns {
		if n := newest[t.actor]; n == nil || t.begin > n.begin {
			newest[t.actor] = t
		}
	}
	owned := map[string]int{}
	for _, t := range newest {
		owned[t.node]++
	}
	return owned
}

// acknowledged returns the number of writes that were acknowledged.
func (h *ActorHistory) acknowledged() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.turns {
		if t.result == Done {
			n++
		}
	}
	return n
}

// Check returns the violations of these guarantees:
//
//  1. No acknowledged increment is lost. Two acknowledged writes of a counter never have the same value. A turn reads
//     at least the value of every write that was acknowledged before the turn began. The final value counts all
//     acknowledged increments, and possibly those of unknown outcome.
//  2. Writes of an earlier epoch come before those of a later one. A write is not applied if it was sent after the
//     beginning of a turn of a later epoch.
//  3. Turns of the same epoch do not overlap, nor do turns at the same process of a node. When an actor has a later
//     owner, an earlier owner begins no turns. Owners whose node was paused are exempt.
//  4. A call is delivered at most once. If the node reported that a call was not delivered, there is no turn for it.
//     An acknowledged call has a turn with the acknowledged result.
func (h *ActorHistory) Check() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var bad []string
	turns := map[string][]*actorTurn{}
	delivered := map[string][]*actorTurn{}
	for _, t := range h.turns {
		turns[t.actor] = append(turns[t.actor], t)
		delivered[t.what] = append(delivered[t.what], t)
	}
	for _, actor := range slices.Sorted(maps.Keys(turns)) {
		all := turns[actor]
		slices.SortStableFunc(all, func(a, b *actorTurn) int { return cmp.Compare(a.begin, b.begin) })
		bad = append(bad, checkWrites(all)...)
		bad = append(bad, checkOverlap(all)...)
		bad = append(bad, h.checkFinalLocked(actor, all)...)
	}
	for i := range h.calls {
		c := &h.calls[i]
		got := delivered[c.id]
		switch {
		case len(got) > 1:
			bad = append(bad, fmt.Sprintf("%s is delivered %d times\n%s", c, len(got), list(got)))
		case c.refused != "" && len(got) > 0:
			bad = append(bad, fmt.Sprintf("%s was delivered\n%s", c, list(got)))
		case c.answered != 0 && (len(got) == 0 || got[0].result != Done || got[0].read+1 != c.answered):
			bad = append(bad, fmt.Sprintf("%s has no turn with this result\n%s", c, list(got)))
		}
	}
	return bad
}

// checkWrites checks the values and epochs of one counter. The turns are ordered by begin.
func checkWrites(all []*actorTurn) (bad []string) {
	var written []*actorTurn
	for _, t := range all {
		if t.result == Done {
			written = append(written, t)
		}
	}
	slices.SortStableFunc(written, func(a, b *actorTurn) int { return cmp.Compare(a.read, b.read) })
	for i, t := range written[min(1, len(written)):] {
		before := written[i]
		switch {
		case before.read == t.read:
			bad = append(bad, fmt.Sprintf("an acknowledged increment is lost: two turns wrote %d\n%s", t.read+1,
				list([]*actorTurn{before, t})))
		case before.epoch > t.epoch:
			bad = append(bad, fmt.Sprintf("epoch %d wrote after epoch %d\n%s", t.epoch, before.epoch,
				list([]*actorTurn{before, t})))
		}
	}
	byEnd := slices.Clone(written)
	slices.SortStableFunc(byEnd, func(a, b *actorTurn) int { return cmp.Compare(a.end, b.end) })
	var newest *actorTurn // of the acknowledged writes so far
	for _, t := range all {
		for len(byEnd) > 0 && byEnd[0].end < t.begin {
			if newest == nil || byEnd[0].read > newest.read {
				newest = byEnd[0]
			}
			byEnd = byEnd[1:]
		}
		if t.sent != 0 && newest != nil && t.read <= newest.read {
			bad = append(bad, fmt.Sprintf("a turn read %d after %d was acknowledged\n%s", t.read, newest.read+1,
				list([]*actorTurn{newest, t})))
		}
	}
	return append(bad, checkEpochs(all)...)
}

// checkEpochs returns a violation for each turn in which an earlier owner acts after a later owner has begun a turn.
// all is sorted by the beginning of the turns.
func checkEpochs(all []*actorTurn) (bad []string) {
	first := map[uint64]*actorTurn{} // first turn of each epoch
	for _, t := range all {
		if first[t.epoch] == nil {
			first[t.epoch] = t
		}
	}
	epochs := slices.Sorted(maps.Keys(first))
	// next[i] is the earliest of the first turns of later epochs
	next := make([]*actorTurn, len(epochs))
	for i := len(epochs) - 2; i >= 0; i-- {
		next[i] = first[epochs[i+1]]
		if later := next[i+1]; later != nil && later.begin < next[i].begin {
			next[i] = later
		}
	}
	for _, t := range all {
		i, _ := slices.BinarySearch(epochs, t.epoch)
		later := next[i]
		switch {
		case later == nil:
		case t.result == Done && t.sent > later.begin:
			bad = append(bad, fmt.Sprintf("two epochs write: %d wrote after a turn of %d had begun\n%s", t.epoch,
				later.epoch, list([]*actorTurn{later, t})))
		case t.begin > later.begin+lateTurn && !t.paused:
			bad = append(bad, fmt.Sprintf("a former owner began a turn %s after a turn of its successor\n%s",
				(t.begin-later.begin).Round(time.Millisecond), list([]*actorTurn{later, t})))
		}
	}
	return bad
}

// checkOverlap looks for turns of one actor that overlap. The turns are ordered by begin.
func checkOverlap(all []*actorTurn) (bad []string) {
	last := map[string]*actorTurn{} // by epoch and by process, the turn that ended last
	for _, t := range all {
		for _, key := range []string{fmt.Sprint("epoch ", t.epoch), fmt.Sprint(t.node, " ", t.life)} {
			before := last[key]
			if before != nil && t.begin < before.end {
				bad = append(bad, fmt.Sprintf("turns overlap (%s)\n%s", key, list([]*actorTurn{before, t})))
				break
			}
			last[key] = t
		}
	}
	return bad
}

// checkFinalLocked compares the last value of a counter with the increments.
func (h *ActorHistory) checkFinalLocked(actor string, all []*actorTurn) []string {
	value, known := h.final[actor]
	if !known {
		return nil
	}
	least, unsure := uint64(0), uint64(0)
	for _, t := range all {
		switch t.result {
		case Done:
			least++
		case Unknown:
			unsure++
		case Conflict, Refused:
		}
	}
	if value < least || value > least+unsure {
		return []string{fmt.Sprintf("actor %s counted to %d: %d increments were acknowledged, and the outcome of %d "+
			"is unknown", actor, value, least, unsure)}
	}
	return nil
}

// String describes the turn.
func (t *actorTurn) String() string {
	result := map[Outcome]string{0: "wrote nothing", Done: "wrote", Conflict: "refused", Refused: "refused",
		Unknown: "unknown outcome"}[t.result]
	paused := ""
	if t.paused {
		paused = ", was paused before"
	}
	return fmt.Sprintf("%s to %s, turn of %s with epoch %d at %s (process %d%s): %s, read %d, sent at %s, %s",
		micro(t.begin), micro(t.end), t.actor, t.epoch, t.node, t.life, paused, t.what, t.read, micro(t.sent), result)
}

// String describes the call.
func (c *actorCall) String() string {
	result := "unknown outcome"
	if c.answered != 0 {
		result = fmt.Sprint("answered ", c.answered)
	} else if c.refused != "" {
		result = "refused: " + c.refused
	}
	return fmt.Sprintf("%s to %s, call %s of %s at %s: %s", micro(c.begin), micro(c.end), c.id, c.actor, c.node, result)
}

func micro(d time.Duration) string { return d.Round(time.Microsecond).String() }

func list(turns []*actorTurn) string {
	lines := make([]string, len(turns))
	for i, t := range turns {
		lines[i] = t.String()
	}
	return strings.Join(lines, "\n")
}

// WriteTo writes all calls and turns as text, one on each line.
func (h *ActorHistory) WriteTo(w io.Writer) (n int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for i := range h.calls {
		lines = append(lines, h.calls[i].String())
	}
	for _, t := range h.turns {
		lines = append(lines, t.String())
	}
	for _, actor := range slices.Sorted(maps.Keys(h.final)) {
		lines = append(lines, fmt.Sprintf("at the end %s has %d", actor, h.final[actor]))
	}
	return writeLines(w, lines)
}

func writeLines(w io.Writer, lines []string) (int64, error) {
	n, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return int64(n), err
}

// String returns a summary.
func (h *ActorHistory) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	acknowledged, refused, unsure, moved := 0, 0, 0, 0
	epochs := map[string]map[uint64]bool{}
	for _, t := range h.turns {
		switch t.result {
		case Done:
			acknowledged++
		case Unknown:
			unsure++
		case Conflict, Refused:
			refused++
		}
		if epochs[t.actor] == nil {
			epochs[t.actor] = map[uint64]bool{}
		}
		epochs[t.actor][t.epoch] = true
	}
	for _, e := range epochs {
		moved += len(e)
	}
	answered := 0
	for i := range h.calls {
		if h.calls[i].answered != 0 {
			answered++
		}
	}
	return fmt.Sprintf("%d calls, %d acknowledged; %d turns in %d epochs of %d actors; %d writes acknowledged, "+
		"%d refused, %d of unknown outcome", len(h.calls), answered, len(h.turns), moved, len(epochs), acknowledged,
		refused, unsure)
}
