package faulttest

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// dueWork is one reminder or job. Times are since the start of the history.
type dueWork struct {
	name     string
	reminder bool          // otherwise a job
	sent     time.Duration // when its registration was requested first
	due      time.Duration // from its registration on
	stored   time.Duration // when its registration was acknowledged; 0 = never
	attempts int           // of the registration
	kept     bool          // its deletion was not requested before it had fired
	removed  time.Duration // when its deletion was acknowledged; 0 = never
}

// dueTick is one delivery.
type dueTick struct {
	name, id, node string
	begin          time.Duration
}

// DueHistory records reminders and jobs with their ticks. It is safe for concurrent use.
type DueHistory struct {
	begun time.Time

	mu    sync.Mutex
	work  map[string]*dueWork // by name; guarded by mu, as is ticks
	ticks map[string][]dueTick
}

// NewDueHistory starts a history.
func NewDueHistory() *DueHistory {
	return &DueHistory{begun: time.Now(), work: map[string]*dueWork{}, ticks: map[string][]dueTick{}}
}

func (h *DueHistory) now() time.Duration { return time.Since(h.begun) }

// change changes the record of some work.
func (h *DueHistory) change(name string, f func(w *dueWork)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.work[name] == nil {
		h.work[name] = &dueWork{name: name}
	}
	f(h.work[name])
}

func (h *DueHistory) addTick(t dueTick) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ticks[t.name] = append(h.ticks[t.name], t)
}

// fired returns how many ticks of some work have begun.
func (h *DueHistory) fired(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ticks[name])
}

// missing returns the work that must fire and has not.
func (h *DueHistory) missing() (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, w := range h.work {
		if w.stored != 0 && w.kept && len(h.ticks[name]) == 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// mostUnderWay is how many ticks of a reminder or job can be in progress when its deletion is acknowledged: one from
// the leader, and one from a former leader that was paused just after it had confirmed its leadership.
const mostUnderWay = 2

// clockGrain is the precision of the times of the store.
const clockGrain = 5 * time.Millisecond

// Check returns the violations of these guarantees:
//
//  1. No tick is early.
//  2. After the deletion of a reminder or job was acknowledged, at most mostUnderWay of its ticks begin. If it was
//     deleted before it was due, no tick begins.
//
// Check omits the second guarantee if the request that stored the reminder or job was sent more than once. A repeated
// request may be applied after the deletion.
func (h *DueHistory) Check() (bad []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(h.work)) {
		w := h.work[name]
		late := map[string]bool{}
		for _, t := range h.ticks[name] {
			if t.begin+clockGrain < w.sent+w.due {
				bad = append(bad, fmt.Sprintf("a tick is %s early\n%s\n%s", micro(w.sent+w.due-t.begin), w, &t))
			}
			if w.removed != 0 && t.begin > w.removed {
				late[t.id] = true
			}
		}
		most := mostUnderWay
		if w.removed < w.sent+w.due {
			most = 0
		}
		if w.attempts == 1 && len(late) > most {
			text := make([]string, 0, len(h.ticks[name]))
			for _, t := range h.ticks[name] {
				text = append(text, t.String())
			}
			bad = append(bad, fmt.Sprintf("%d ticks began after the deletion was acknowledged\n%s\n%s", len(late), w,
				strings.Join(text, "\n")))
		}
	}
	return bad
}

// String describes the work.
func (w *dueWork) String() string {
	kind := "job"
	if w.reminder {
		kind = "reminder"
	}
	return fmt.Sprintf("%s, %s %s, due after %s: stored at %s in %d attempts, deleted at %s (0s = never)",
		micro(w.sent), kind, w.name, w.due, micro(w.stored), w.attempts, micro(w.removed))
}

// String describes the tick.
func (t *dueTick) String() string {
	return fmt.Sprintf("%s, tick %s of %s at %s", micro(t.begin), t.id, t.name, t.node)
}

// Size returns the number of ticks.
func (h *DueHistory) Size() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ticks := range h.ticks {
		n += len(ticks)
	}
	return n
}

// WriteTo writes all work and all ticks as text, one on each line.
func (h *DueHistory) WriteTo(w io.Writer) (n int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(h.work)) {
		lines = append(lines, h.work[name].String())
		for _, t := range h.ticks[name] {
			lines = append(lines, t.String())
		}
	}
	return writeLines(w, lines)
}

// String returns a summary.
func (h *DueHistory) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	stored, removed, fired, ticks, again := 0, 0, 0, 0, 0
	for name, w := range h.work {
		if w.stored != 0 {
			stored++
		}
		if w.removed != 0 {
			removed++
		}
		ids := map[string]bool{}
		for _, t := range h.ticks[name] {
			if ticks++; ids[t.id] {
				again++
			}
			ids[t.id] = true
		}
		if len(ids) > 0 {
			fired++
		}
	}
	return fmt.Sprintf("%d reminders and jobs stored, %d deleted, %d fired; %d ticks, %d of them delivered again",
		stored, removed, fired, ticks, again)
}
