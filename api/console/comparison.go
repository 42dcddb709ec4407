package console

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

const (
	compareTime    = 20 * time.Second // timeout of one comparison of replicas
	maxComparisons = 64               // remembered results, at most one of each group
)

// comparison is the last comparison of the replicas of a group.
type comparison struct {
	running bool
	at      time.Time
	result  schema.Comparison
	err     string
}

// comparisons compares the replicas of groups and stores the latest result of each group. At most one comparison per
// group runs at a time. It is safe for concurrent use.
type comparisons struct {
	closing context.Context
	cease   context.CancelFunc
	running sync.WaitGroup

	mu   sync.Mutex
	last map[uint64]comparison // by group
}

// latest returns the last comparison of a group. The field at is zero if there is none.
func (c *comparisons) latest(group uint64) comparison {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last[group]
}

// begin registers a comparison of a group, which the caller must then run. It returns false if the comparison cannot
// start, for example because one is running already.
func (c *comparisons) begin(group uint64, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	one, known := c.last[group]
	if one.running || c.closing.Err() != nil {
		return false
	}
	if !known && len(c.last) >= maxComparisons && !c.forgetOldest() {
		return false
	}
	if c.last == nil {
		c.last = map[uint64]comparison{}
	}
	c.last[group] = comparison{running: true, at: now}
	c.running.Add(1)
	return true
}

// forgetOldest forgets the oldest comparison that is not running, and reports whether there is one. The caller holds
// c.mu.
func (c *comparisons) forgetOldest() bool {
	oldest, found := uint64(0), false
	for group, one := range c.last {
		if !one.running && (!found || one.at.Before(c.last[oldest].at)) {
			oldest, found = group, true
		}
	}
	if found {
		delete(c.last, oldest)
	}
	return found
}

func (c *comparisons) end(group uint64, one comparison) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[group] = one
	c.running.Done()
}

// close ends running comparisons and waits for them.
func (c *comparisons) close() {
	c.mu.Lock()
	c.cease()
	c.mu.Unlock()
	c.running.Wait()
}

// compareReplicas handles a click on the button that comparisonCard renders. It starts the comparison in the background
// and redirects to the page of the group, which later shows the result. A comparison changes no data, so a read-only
// console permits it.
func (r *request) compareReplicas() {
	c := r.console
	id, err := strconv.ParseUint(r.PathValue("group"), 10, 32)
	leader := ""
	if err == nil {
		leader = r.leaderOf(id)
	}
	if leader == "" {
		c.failed(r, http.StatusNotFound, "No leader of group "+r.PathValue("group")+" is known.")
		return
	}
	r.audit(r.Context(), "compare replicas", "group", id)
	if c.compared.begin(id, c.config.Now()) {
		go c.compare(leader, id)
	}
	http.Redirect(r.w, r.Request, "/groups/"+url.PathEscape(r.PathValue("group")), http.StatusSeeOther)
}

func (c *Console) compare(leader string, group uint64) {
	ctx, cancel := context.WithTimeout(c.compared.closing, compareTime)
	defer cancel()
	result, err := c.config.Cluster.CompareReplicas(ctx, leader, group)
	one := comparison{at: c.config.Now(), result: result}
	if err != nil {
		one.err = fault.Text(err)
	}
	c.compared.end(group, one)
}

// comparisonCard shows the latest comparison of a group, and a button that starts a new one.
func (r *request) comparisonCard(g group) html {
	last := r.console.compared.latest(g.ID)
	var body html
	switch {
	case last.running:
		return card("comparison", "Comparison of the replicas",
			`<p role="status">The servers are compared. That takes up to 18 seconds.</p>`)
	case last.err != "":
		body = failure("The replicas could not be compared: " + last.err)
	case !last.at.IsZero():
		body = comparisonResult(&last, r.snap.At)
	}
	return card("comparison", "Comparison of the replicas", h(`%<form method="post" action="/groups/%/compare">%`+
		`<button>Run comparison</button></form>`, body, num(g.ID), r.csrf()))
}

func comparisonResult(c *comparison, now time.Time) html {
	level, word, verdict := levelOK, "same", "All servers have the same state."
	digests := map[string]bool{}
	var rows []html
	for _, one := range c.result.Replicas {
		state := badge(levelOK, "same as the majority")
		switch {
		case one.Digest == "":
			state = badge(levelWarn, "not known")
			if level == levelOK {
				level, word, verdict = levelWarn, "incomplete", "The servers that answered have the same state."
			}
		case c.result.Majority == "":
			state = badge(levelWarn, "no majority")
			digests[one.Digest] = true
		case one.Digest != c.result.Majority:
			state = badge(levelFail, "differs")
			level, word, verdict = levelFail, "different", "The states differ."
		}
		role := "voter"
		if !one.Voter {
			role = "non-voter"
		}
		rows = append(rows, row(link(one.Node, "nodes", one.Node), esc(role), state, code(one.Digest),
			text(one.Reason)))
	}
	if c.result.Majority == "" {
		level, word, verdict = levelWarn, "incomplete", "Too few servers have answered."
		if len(digests) > 1 {
			level, word, verdict = levelFail, "different", "No state has a majority of the voters."
		}
	}
	return h(`<p>% <strong>%</strong> After log entry %, %.</p>`, badge(level, word), esc(verdict), num(c.result.Index),
		esc(moment(c.at, now))) + grid("Replicas", "Server|Role|State|Hash of the state|Problem", rows)
}
