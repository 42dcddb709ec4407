package jobs

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/due"
)

// Limits of the history of runs. It needs at most 64 KiB.
const (
	keepRuns   = 128
	keepOfJob  = 8   // runs of one job, so that a frequent job does not displace the others
	maxRunText = 256 // bytes of an error
)

// history records the latest job runs that this node has delivered. It is safe for concurrent use.
type history struct {
	mu   sync.Mutex
	runs []schema.JobRun // oldest first
}

// Runs returns the latest job runs that this node has delivered since its start. The oldest run is first.
func (j *Jobs) Runs() []schema.JobRun {
	j.history.mu.Lock()
	defer j.history.mu.Unlock()
	return slices.Clone(j.history.runs)
}

func (h *history) add(t *due.Tick, node string, begun time.Time, r due.Result, err error) {
	app := appOf(t.Home)
	one := schema.JobRun{App: app.ID, Namespace: app.Namespace, Name: t.Name, Node: node, At: begun.UTC(),
		Took: time.Since(begun), Tick: t.Number, Attempt: t.Attempt, Outcome: outcome(r)}
	if err != nil {
		one.Error = strings.ToValidUTF8(fault.Shorten(fault.Text(err), maxRunText), "")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	first, n := 0, 0
	for i := range h.runs {
		if h.runs[i].Name == one.Name && h.runs[i].App == one.App && h.runs[i].Namespace == one.Namespace {
			if n == 0 {
				first = i
			}
			n++
		}
	}
	if n >= keepOfJob {
		h.runs = slices.Delete(h.runs, first, first+1)
	} else if len(h.runs) == keepRuns {
		h.runs = slices.Delete(h.runs, 0, 1)
	}
	h.runs = append(h.runs, one)
}

func outcome(r due.Result) string {
	switch r {
	case due.Done:
		return "done"
	case due.Unknown:
		return "unknown"
	case due.Failed:
		return "failed"
	default:
		return "undelivered"
	}
}
