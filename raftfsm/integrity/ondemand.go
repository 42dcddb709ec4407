package integrity

import (
	"context"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
)

const (
	markPoll  = 100 * time.Millisecond // interval of the checks for a new mark
	askPause  = 300 * time.Millisecond // pause before servers that were behind are queried again
	askTime   = 3 * time.Second        // time after which servers that are behind are not queried again
	markSlack = 3 * time.Second        // time to commit and apply the entry of a mark
)

// Comparison is the outcome of Watch.Compare.
type Comparison struct {
	Index   uint64   // index of the log entry after which the states are compared
	Answers []Answer // answers of all servers of the group, including this server
}

// Majority returns the digest that more than half of the voters have. The result found is false if no digest has a
// majority.
func (c *Comparison) Majority() (d kv.Digest, found bool) {
	count, voters := map[kv.Digest]int{}, 0
	for i := range c.Answers {
		a := &c.Answers[i]
		if !a.Voter() {
			continue
		}
		voters++
		if a.Err == nil && a.Report.Marked {
			count[a.Report.Digest]++
		}
	}
	for d, n := range count {
		if n > voters/2 {
			return d, true
		}
	}
	return kv.Digest{}, false
}

// Compare collects the digests that all servers have at a mark of the current state (see kv.Mark). Unlike Round, it
// repairs nothing. Call it on the leader.
//
// Compare first waits for the mark. It returns fault.Timeout if there is no mark after Config.Every plus markSlack. The
// queries to the servers then take up to askTime plus Config.ReadRound.
func (w *Watch) Compare(ctx context.Context) (Comparison, error) {
	mark, err := w.newMark(ctx)
	if err != nil {
		return Comparison{}, err
	}
	c := Comparison{Index: mark.Index, Answers: w.askUntilAnswered(ctx, mark.Index)}
	for _, s := range w.Raft.Servers() {
		if s.ID == w.Self {
			c.Answers = append(c.Answers, Answer{Server: s, Report: w.AnswerCompare(mark.Index)})
		}
	}
	return c, nil
}

// askUntilAnswered repeats Ask until no server is behind, askTime has passed, or ctx ends. It lets the last call of Ask
// finish, so that the answers of that call are not lost.
func (w *Watch) askUntilAnswered(ctx context.Context, index uint64) []Answer {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for {
		answers := w.Ask(index)
		if allAnswered(answers) || !pause(ctx, w.Closing, askPause) {
			return answers
		}
	}
}

// allAnswered reports whether no server is behind. A server is behind if it answers the query without a digest although
// it trusts its state. Usually such a server has not applied the entry of the mark yet. Servers that could not be
// queried do not count as behind.
func allAnswered(answers []Answer) bool {
	for _, a := range answers {
		if a.Err == nil && !a.Report.Marked && !a.Report.Doubted {
			return false
		}
	}
	return true
}

// newMark returns a mark of the current state or of a later one (see kv.Mark). If there is none, newMark waits until
// cluster time allows a new mark, and proposes the entry for it.
func (w *Watch) newMark(ctx context.Context) (kv.Mark, error) {
	ctx, cancel := context.WithTimeout(ctx, w.Every+markSlack)
	defer cancel()
	from, period := w.FSM.Machine().Applied(), MarkPeriod(w.Every)
	for {
		m := w.FSM.Machine()
		if marks := m.Marks(); len(marks) > 0 && marks[len(marks)-1].Index >= from {
			return marks[len(marks)-1], nil
		}
		if m.Clock()/period != w.Raft.Time()/period {
			if err := w.Raft.Tick(ctx); err != nil {
				return kv.Mark{}, err
			}
		}
		if !pause(ctx, w.Closing, markPoll) {
			return kv.Mark{}, fault.New(fault.Timeout, "integrity.Compare",
				"the entry at which the servers are compared was not committed in time")
		}
	}
}

// pause waits for d. It returns false if ctx or closing ends first.
func pause(ctx, closing context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-closing.Done():
	}
	return false
}
