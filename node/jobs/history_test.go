package jobs

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/raftfsm/due"
)

func TestTurn_GoesOnWithEveryTickAndDelivery(t *testing.T) {
	tick := due.Tick{Revision: 41, Number: 1, Attempt: 1}
	first := turn(&tick)
	for i, next := range []due.Tick{{Number: 2, Attempt: 1}, {Number: 1, Attempt: 2},
		{Number: 1, Attempt: 1, Lost: 1}} {
		next.Revision = tick.Revision
		if got := turn(&next); got != first+1 {
			t.Errorf("%d: turn %d after %d", i, got, first)
		}
	}
	counts := [3]int{} // of jobs with one tick, whose revisions are multiples of 3
	for i := range uint64(300) {
		counts[turn(&due.Tick{Revision: 3 * i, Number: 1, Attempt: 1})%3]++
	}
	for _, n := range counts {
		if n < 80 {
			t.Errorf("the first ticks of 300 jobs are spread as %d", counts)
		}
	}
}

func TestHistory_KeepsTheLastRunsOfEveryJob(t *testing.T) {
	var j Jobs
	tick := func(name string, n int) *due.Tick {
		return &due.Tick{Home: home(api.App{ID: "shop"}), Name: name, Attempt: 1,
			Number: uint64(n)} //nolint:gosec // small
	}
	j.history.add(tick("rare", 1), "n1", time.Now(), due.Failed, errors.New(strings.Repeat("é", maxRunText)))
	for i := range 10 * keepRuns {
		j.history.add(tick("frequent", i), "n2", time.Now(), due.Done, nil)
	}
	runs := j.Runs()
	if len(runs) != keepOfJob+1 || runs[0].Name != "rare" || runs[0].Outcome != "failed" || runs[0].App != "shop" {
		t.Fatalf("%+v", runs)
	}
	if text := runs[0].Error; len(text) > maxRunText || !strings.HasPrefix(text, "éé") ||
		strings.Contains(text, "\uFFFD") {
		t.Errorf("error %q", text)
	}
	if last := runs[len(runs)-1]; last.Tick != 10*keepRuns-1 || last.Node != "n2" || last.Outcome != "done" {
		t.Errorf("last run %+v", last)
	}
	for i := range 2 * keepRuns {
		j.history.add(tick("job "+strconv.Itoa(i), 1), "", time.Now(), due.Undelivered, nil)
	}
	if runs = j.Runs(); len(runs) != keepRuns || runs[0].Name == "rare" {
		t.Errorf("%d runs, the first is %+v", len(runs), runs[0])
	}
}
