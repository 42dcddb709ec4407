package history

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

// Result is the outcome of a request: the write of a turn, a publish, or the start of a workflow.
type Result uint8

// The results.
const (
	NoWrite Result = iota // the turn has sent no write
	Written               // the write was acknowledged
	Refused               // the write was certainly not applied
	Unknown               // the write may have been applied, or may still be applied later
)

// String returns the result in words.
func (r Result) String() string {
	return []string{"wrote nothing", "wrote", "refused", "unknown outcome"}[r]
}

// Turn is one turn of an actor, as the application saw it. If a turn writes, the application reads the counter of the
// actor and writes the next number. All times are durations since the start of the history.
type Turn struct {
	Actor  string
	Node   string // the node beside which the application runs
	Life   int    // process id of the node
	Epoch  uint64
	What   string // id of the call, or name of the reminder
	Begin  time.Duration
	Sent   time.Duration // when the turn sent its write; 0 = never
	End    time.Duration // end of the turn, after the answer to its write
	Read   uint64        // the counter that the turn read; 0 = there was no counter
	Result Result        // result of the write
	Paused bool          // the node was paused shortly before the turn began
}

// ActorCall is one call of an actor, as its client saw it.
type ActorCall struct {
	ID, Actor, Node string
	Begin, End      time.Duration
	Answered        uint64 // the number that was written; 0 = the call was not acknowledged
	Refused         string // the reason, if the node reported that the application has not got the call
}

// lateTurn is how long an earlier owner of an actor may still begin turns after a later owner has begun its first turn.
// Normally the earlier owner begins none, because its lease ends 400 ms before that turn. But the process of the
// earlier owner may be suspended after it has checked the lease and before it calls the application.
const lateTurn = 2 * time.Second

// Actors records the turns of actors and the calls of their clients. It is safe for concurrent use.
type Actors struct {
	begun time.Time

	mu    sync.Mutex
	turns []*Turn // guarded by mu, as are the fields below
	calls []ActorCall
	final map[string]uint64 // last values of the counters, by actor
}

// NewActors starts a history.
func NewActors() *Actors {
	return &Actors{begun: time.Now(), final: map[string]uint64{}}
}

// Now returns the time since the start of the history.
func (h *Actors) Now() time.Duration { return time.Since(h.begun) }

// AddTurn records a turn that has ended.
func (h *Actors) AddTurn(t *Turn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turns = append(h.turns, t)
}

// AddCall records a call that has ended.
func (h *Actors) AddCall(c *ActorCall) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, *c)
}

// Ended records the last value of a counter.
func (h *Actors) Ended(actor string, value uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.final[actor] = value
}

// Size returns the number of turns.
func (h *Actors) Size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.turns)
}

// Owned returns the number of actors whose newest turn was at each node. The keys are the names of the nodes.
func (h *Actors) Owned() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	newest := map[string]*Turn{}
	for _, t := range h.turns {
		if n := newest[t.Actor]; n == nil || t.Begin > n.Begin {
			newest[t.Actor] = t
		}
	}
	owned := map[string]int{}
	for _, t := range newest {
		owned[t.Node]++
	}
	return owned
}

// Acknowledged returns the number of writes that were acknowledged.
func (h *Actors) Acknowledged() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.turns {
		if t.Result == Written {
			n++
		}
	}
	return n
}

// Check returns the violations of these guarantees:
//
//  1. No acknowledged increment is lost. Two acknowledged writes of a counter never have the same value. A turn that
//     writes has read at least the value of every write that was acknowledged before the turn began. The final value
//     counts all acknowledged increments, and possibly increments of unknown outcome.
//  2. Writes of an earlier epoch come before writes of a later epoch. If a turn sends a write after a turn of a later
//     epoch has begun, the write is not acknowledged.
//  3. Turns of an actor do not overlap if they have the same epoch, or are in the same process of a node. An earlier
//     owner begins no turn more than two seconds after a later owner has begun one, unless the earlier owner's node was
//     paused.
//  4. A call is delivered at most once. If the node reported that a call was not delivered, there is no turn for it.
//     An acknowledged call has a turn with the acknowledged result.
func (h *Actors) Check() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var bad []string
	turns := map[string][]*Turn{}
	delivered := map[string][]*Turn{}
	for _, t := range h.turns {
		turns[t.Actor] = append(turns[t.Actor], t)
		delivered[t.What] = append(delivered[t.What], t)
	}
	for _, actor := range slices.Sorted(maps.Keys(turns)) {
		all := turns[actor]
		slices.SortStableFunc(all, func(a, b *Turn) int { return cmp.Compare(a.Begin, b.Begin) })
		bad = append(bad, checkWrites(all)...)
		bad = append(bad, checkOverlap(all)...)
		bad = append(bad, h.checkFinalLocked(actor, all)...)
	}
	for i := range h.calls {
		c := &h.calls[i]
		got := delivered[c.ID]
		switch {
		case len(got) > 1:
			bad = append(bad, fmt.Sprintf("%s is delivered %d times\n%s", c, len(got), list(got)))
		case c.Refused != "" && len(got) > 0:
			bad = append(bad, fmt.Sprintf("%s was delivered\n%s", c, list(got)))
		case c.Answered != 0 && (len(got) == 0 || got[0].Result != Written || got[0].Read+1 != c.Answered):
			bad = append(bad, fmt.Sprintf("%s has no turn with this result\n%s", c, list(got)))
		}
	}
	return bad
}

// checkWrites checks the values and epochs of one counter. The turns are ordered by begin.
func checkWrites(all []*Turn) (bad []string) {
	var written []*Turn
	for _, t := range all {
		if t.Result == Written {
			written = append(written, t)
		}
	}
	slices.SortStableFunc(written, func(a, b *Turn) int { return cmp.Compare(a.Read, b.Read) })
	for i, t := range written[min(1, len(written)):] {
		before := written[i]
		switch {
		case before.Read == t.Read:
			bad = append(bad, fmt.Sprintf("an acknowledged increment is lost: two turns wrote %d\n%s", t.Read+1,
				list([]*Turn{before, t})))
		case before.Epoch > t.Epoch:
			bad = append(bad, fmt.Sprintf("epoch %d wrote after epoch %d\n%s", t.Epoch, before.Epoch,
				list([]*Turn{before, t})))
		}
	}
	byEnd := slices.Clone(written)
	slices.SortStableFunc(byEnd, func(a, b *Turn) int { return cmp.Compare(a.End, b.End) })
	var newest *Turn // the acknowledged write with the highest value so far
	for _, t := range all {
		for len(byEnd) > 0 && byEnd[0].End < t.Begin {
			if newest == nil || byEnd[0].Read > newest.Read {
				newest = byEnd[0]
			}
			byEnd = byEnd[1:]
		}
		if t.Sent != 0 && newest != nil && t.Read <= newest.Read {
			bad = append(bad, fmt.Sprintf("a turn read %d after %d was acknowledged\n%s", t.Read, newest.Read+1,
				list([]*Turn{newest, t})))
		}
	}
	return append(bad, checkEpochs(all)...)
}

// checkEpochs returns a violation for each turn of an earlier owner that comes too late. A turn is too late if it sends
// a successful write after a turn of a later owner has begun. It is also too late if it begins more than lateTurn after
// the begin of such a turn, unless its node was paused. The turns must be sorted by their begin.
func checkEpochs(turns []*Turn) (bad []string) {
	first := map[uint64]*Turn{} // first turn of each epoch
	for _, t := range turns {
		if first[t.Epoch] == nil {
			first[t.Epoch] = t
		}
	}
	epochs := slices.Sorted(maps.Keys(first))
	// next[i] is the earliest of the first turns of later epochs
	next := make([]*Turn, len(epochs))
	for i := len(epochs) - 2; i >= 0; i-- {
		next[i] = first[epochs[i+1]]
		if later := next[i+1]; later != nil && later.Begin < next[i].Begin {
			next[i] = later
		}
	}
	for _, t := range turns {
		i, _ := slices.BinarySearch(epochs, t.Epoch)
		later := next[i]
		switch {
		case later == nil:
		case t.Result == Written && t.Sent > later.Begin:
			bad = append(bad, fmt.Sprintf("two epochs write: %d wrote after a turn of %d had begun\n%s", t.Epoch,
				later.Epoch, list([]*Turn{later, t})))
		case t.Begin > later.Begin+lateTurn && !t.Paused:
			bad = append(bad, fmt.Sprintf("a former owner began a turn %s after a turn of its successor\n%s",
				(t.Begin-later.Begin).Round(time.Millisecond), list([]*Turn{later, t})))
		}
	}
	return bad
}

// checkOverlap looks for turns of one actor that overlap. The turns are ordered by begin.
func checkOverlap(all []*Turn) (bad []string) {
	last := map[string]*Turn{} // by epoch, and by process: the turn that ended last
	for _, t := range all {
		for _, key := range []string{fmt.Sprint("epoch ", t.Epoch), fmt.Sprint(t.Node, " ", t.Life)} {
			before := last[key]
			if before != nil && t.Begin < before.End {
				bad = append(bad, fmt.Sprintf("turns overlap (%s)\n%s", key, list([]*Turn{before, t})))
				break
			}
			last[key] = t
		}
	}
	return bad
}

// checkFinalLocked returns a violation if the final value of an actor's counter is impossible. The value must be at
// least the number of acknowledged increments. It may exceed this number by at most the increments of unknown outcome.
func (h *Actors) checkFinalLocked(actor string, all []*Turn) []string {
	value, known := h.final[actor]
	if !known {
		return nil
	}
	least, unsure := uint64(0), uint64(0)
	for _, t := range all {
		switch t.Result {
		case Written:
			least++
		case Unknown:
			unsure++
		case NoWrite, Refused:
		}
	}
	if value < least || value > least+unsure {
		return []string{fmt.Sprintf("actor %s counted to %d: %d increments were acknowledged, and the outcome of %d "+
			"is unknown", actor, value, least, unsure)}
	}
	return nil
}

// String describes the turn.
func (t *Turn) String() string {
	paused := ""
	if t.Paused {
		paused = ", was paused before"
	}
	return fmt.Sprintf("%s to %s, turn of %s with epoch %d at %s (process %d%s): %s, read %d, sent at %s, %s",
		micro(t.Begin), micro(t.End), t.Actor, t.Epoch, t.Node, t.Life, paused, t.What, t.Read, micro(t.Sent), t.Result)
}

// String describes the call.
func (c *ActorCall) String() string {
	result := "unknown outcome"
	if c.Answered != 0 {
		result = fmt.Sprint("answered ", c.Answered)
	} else if c.Refused != "" {
		result = "refused: " + c.Refused
	}
	return fmt.Sprintf("%s to %s, call %s of %s at %s: %s", micro(c.Begin), micro(c.End), c.ID, c.Actor, c.Node, result)
}

func list(turns []*Turn) string {
	lines := make([]string, len(turns))
	for i, t := range turns {
		lines[i] = t.String()
	}
	return strings.Join(lines, "\n")
}

// WriteTo writes all calls and turns as text, one on each line.
func (h *Actors) WriteTo(w io.Writer) (n int64, err error) {
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

// String returns a summary.
func (h *Actors) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	acknowledged, refused, unsure, moved := 0, 0, 0, 0
	epochs := map[string]map[uint64]bool{}
	for _, t := range h.turns {
		switch t.Result {
		case Written:
			acknowledged++
		case Unknown:
			unsure++
		case Refused:
			refused++
		case NoWrite:
		}
		if epochs[t.Actor] == nil {
			epochs[t.Actor] = map[uint64]bool{}
		}
		epochs[t.Actor][t.Epoch] = true
	}
	for _, e := range epochs {
		moved += len(e)
	}
	answered := 0
	for i := range h.calls {
		if h.calls[i].Answered != 0 {
			answered++
		}
	}
	return fmt.Sprintf("%d calls, %d acknowledged; %d turns in %d epochs of %d actors; %d writes acknowledged, "+
		"%d refused, %d of unknown outcome", len(h.calls), answered, len(h.turns), moved, len(epochs), acknowledged,
		refused, unsure)
}
