package console

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/api"
)

// Calls reports the API requests of this node while a page shows them. Implementations are safe for concurrent use.
type Calls interface {
	Watch(f api.CallFilter, ready chan<- struct{}) (*api.CallWatch, error)
}

const callsPath = "/calls"

// liveCalls are the calls that a page shows.
type liveCalls struct {
	watch *api.CallWatch
	calls []api.LiveCall // oldest first
	seen  uint64         // calls that the filter selected
	lost  uint64         // calls of seen that were dropped, because the page did not read them in time
}

// read takes the new calls from the watch.
func (l *liveCalls) read() {
	calls, lost := l.watch.Take()
	l.seen, l.lost = l.seen+uint64(len(calls))+lost, l.lost+lost
	l.calls = append(l.calls, calls...)
	if extra := len(l.calls) - api.MaxLiveCalls; extra > 0 {
		l.calls = append(l.calls[:0:0], l.calls[extra:]...)
	}
}

// callFilter returns the filter in the address of the page.
func (r *request) callFilter() api.CallFilter {
	q := r.URL.Query()
	f := api.CallFilter{App: q.Get("app"), Route: q.Get("route"), Failed: q.Get("failed") != "",
		Trace: strings.ToLower(strings.TrimSpace(q.Get("trace")))}
	if ms, err := strconv.ParseUint(q.Get("ms"), 10, 31); err == nil {
		f.Least = time.Duration(ms) * time.Millisecond //nolint:gosec // 31 bits
	}
	return f
}

// followCalls sends news for the console's page Calls. It watches the API requests of this node that match the filter
// of the page, and the state of the cluster.
func followCalls(r *request) (news <-chan struct{}, closed func(), err error) {
	changed := make(chan struct{}, 1)
	w, err := r.console.config.Calls.Watch(r.callFilter(), changed)
	if err != nil {
		return nil, nil, err
	}
	r.live = &liveCalls{watch: w}
	forget := r.console.watcher.open(changed)
	return changed, func() { forget(); w.Close() }, nil
}

// callsBody shows the last calls of this node. Calls are recorded only while a page is open.
func callsBody(r *request) (html, error) {
	if r.live != nil {
		r.live.read()
	}
	f := r.callFilter()
	least := ""
	if f.Least > 0 {
		least = strconv.FormatInt(f.Least.Milliseconds(), 10)
	}
	failed := ""
	if f.Failed {
		failed = "1"
	}
	var apps []html
	for _, a := range r.apps() {
		apps = append(apps, h(`<option value="%">`, esc(a)))
	}
	return card("choose", "Choose calls", h(`<form class="inline" method="get" action="/calls">%<datalist id="apps">%`+
		`</datalist>%%%%<button>Show</button></form>`, label("Application", "app", f.App, ` list="apps"`), joined(apps),
		label("Part of the route", "route", f.Route, ""), label("Trace id", "trace", f.Trace, ""),
		label("Least milliseconds", "ms", least, ` type="number" min="0"`),
		choose("Outcome", "failed", failed, []string{"=all", "1=failed"}))) +
		card("calls", "Calls", r.live.table(r.Request)), nil
}

// table lists the calls, the newest first.
func (l *liveCalls) table(r *http.Request) html {
	if l == nil {
		return dim("Calls are recorded while this page is open in a browser with JavaScript.")
	}
	note := "Calls of this node since the page was opened: " + strconv.FormatUint(l.seen, 10) + ". "
	if l.lost > 0 {
		note += strconv.FormatUint(l.lost, 10) + " came too fast and are not listed. Choose fewer calls to see all. "
	}
	note += "The last " + strconv.Itoa(api.MaxLiveCalls) + " are listed."
	if l.seen == 0 {
		return dim("Waiting for calls of this node.")
	}
	var rows []html
	for i := len(l.calls) - 1; i >= 0; i-- {
		c := &l.calls[i]
		rows = append(rows, row(esc(c.At.UTC().Format("15:04:05.000")), text(c.App), code(c.Route), callOutcome(c),
			esc(seconds(c.Took.Seconds())), text(c.Level), traceLink(r, c.Trace)))
	}
	return dim(note) + grid("Calls", "Ended (UTC)|Application|Route|Status|Took|Consistency|Trace", rows)
}

// traceLink renders a trace id as a link to all calls of that trace.
func traceLink(r *http.Request, id string) html {
	if id == "" {
		return text("")
	}
	q := r.URL.Query()
	q.Set("trace", id)
	return h(`<a href="%">%</a>`, esc(callsPath+"?"+q.Encode()), code(id))
}

func callOutcome(c *api.LiveCall) html {
	level, word := levelOK, c.Protocol+" "+strconv.Itoa(c.Code)
	if c.Failed {
		level = levelFail
	}
	if c.Code == 0 && c.Failed {
		word = "aborted"
	}
	return badge(level, word)
}
