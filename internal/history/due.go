package history

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Work is one reminder or job. Times are since the start of the history.
type Work struct {
	Name     string
	Reminder bool          // false = a job
	Sent     time.Duration // when the registration was first requested
	Due      time.Duration // delay from the registration to the first tick
	Ticks    int           // number of ticks in the schedule; 0 = any number
	Stored   time.Duration // when the registration was acknowledged; 0 = never
	Attempts int           // number of attempts to register the work
	Kept     bool          // no deletion was requested before the work had fired
	Removed  time.Duration // when the deletion was acknowledged; 0 = never
}

// Tick is one delivery of a reminder or job, for one of its due times.
type Tick struct {
	Name, ID, Node string // ID is the same when the tick is delivered again
	Begin          time.Duration
}

// Due records reminders and jobs with their ticks. It is safe for concurrent use.
type Due struct {
	begun time.Time

	mu    sync.Mutex
	work  map[string]*Work // by name; guarded by mu, as is ticks
	ticks map[string][]Tick
}

// NewDue starts a history.
func NewDue() *Due {
	return &Due{begun: time.Now(), work: map[string]*Work{}, ticks: map[string][]Tick{}}
}

// Now returns the time since the start of the history.
func (h *Due) Now() time.Duration { return time.Since(h.begun) }

// Change calls f to change the record of the reminder or job with the given name. It creates the record if there is
// none.
func (h *Due) Change(name string, f func(w *Work)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.work[name] == nil {
		h.work[name] = &Work{Name: name}
	}
	f(h.work[name])
}

// AddTick records a delivery.
func (h *Due) AddTick(t Tick) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ticks[t.Name] = append(h.ticks[t.Name], t)
}

// Fired returns how many deliveries of the reminder or job with the given name have begun.
func (h *Due) Fired(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ticks[name])
}

// Missing returns the names of the reminders and jobs that must fire, but have not fired yet.
func (h *Due) Missing() (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, w := range h.work {
		if w.Stored != 0 && w.Kept && len(h.ticks[name]) == 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// mostUnderWay is how many ticks of a reminder or job may still reach the application after its deletion was
// acknowledged. One tick may be on the way from the leader. Another may come from a former leader that was paused just
// after it had confirmed its leadership.
const mostUnderWay = 2

// clockGrain is the precision of the times of the store.
const clockGrain = 5 * time.Millisecond

// Check returns the violations of these guarantees:
//
//  1. No tick is early.
//  2. A reminder or job has at most as many ticks as its schedule.
//  3. After the deletion of a reminder or job was acknowledged, at most two of its ticks begin. If the deletion was
//     acknowledged before the first tick was due, no tick begins.
//
// If the reminder or job was registered by more than one request, Check omits the second and third guarantee. The
// reason is that a repeated request starts the schedule again, and may be applied after the deletion.
func (h *Due) Check() (bad []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(h.work)) {
		w := h.work[name]
		all, late := map[string]bool{}, map[string]bool{} // ids of ticks
		for _, t := range h.ticks[name] {
			if t.Begin+clockGrain < w.Sent+w.Due {
				bad = append(bad, fmt.Sprintf("a tick is %s early\n%s\n%s", micro(w.Sent+w.Due-t.Begin), w, &t))
			}
			all[t.ID] = true
			if w.Removed != 0 && t.Begin > w.Removed {
				late[t.ID] = true
			}
		}
		most := mostUnderWay
		if w.Removed < w.Sent+w.Due {
			most = 0
		}
		if w.Attempts != 1 {
			continue
		}
		if w.Ticks > 0 && len(all) > w.Ticks {
			bad = append(bad, fmt.Sprintf("%d ticks began, and the schedule has %d\n%s", len(all), w.Ticks,
				h.listLocked(w)))
		}
		if len(late) > most {
			bad = append(bad, fmt.Sprintf("%d ticks began after the deletion was acknowledged\n%s", len(late),
				h.listLocked(w)))
		}
	}
	return bad
}

// listLocked describes a reminder or job and its ticks.
func (h *Due) listLocked(w *Work) string {
	lines := []string{w.String()}
	for i := range h.ticks[w.Name] {
		lines = append(lines, h.ticks[w.Name][i].String())
	}
	return strings.Join(lines, "\n")
}

// String describes the work.
func (w *Work) String() string {
	kind := "job"
	if w.Reminder {
		kind = "reminder"
	}
	return fmt.Sprintf("%s, %s %s, due after %s: stored at %s in %d attempts, deleted at %s (0s = never)",
		micro(w.Sent), kind, w.Name, w.Due, micro(w.Stored), w.Attempts, micro(w.Removed))
}

// String describes the tick.
func (t *Tick) String() string {
	return fmt.Sprintf("%s, tick %s of %s at %s", micro(t.Begin), t.ID, t.Name, t.Node)
}

// Size returns the number of deliveries.
func (h *Due) Size() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ticks := range h.ticks {
		n += len(ticks)
	}
	return n
}

// WriteTo writes all work and all ticks as text, one on each line.
func (h *Due) WriteTo(w io.Writer) (n int64, err error) {
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
func (h *Due) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	stored, removed, fired, ticks, again := 0, 0, 0, 0, 0
	for name, w := range h.work {
		if w.Stored != 0 {
			stored++
		}
		if w.Removed != 0 {
			removed++
		}
		ids := map[string]bool{}
		for _, t := range h.ticks[name] {
			if ticks++; ids[t.ID] {
				again++
			}
			ids[t.ID] = true
		}
		if len(ids) > 0 {
			fired++
		}
	}
	return fmt.Sprintf("%d reminders and jobs stored, %d deleted, %d fired; %d ticks, %d of them delivered again",
		stored, removed, fired, ticks, again)
}
