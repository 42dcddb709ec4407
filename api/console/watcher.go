package console

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
)

const (
	pollEvery = 2 * time.Second
	pollTime  = 1500 * time.Millisecond // timeout for the answers of all nodes
	keepTime  = time.Minute             // how long snapshots are kept without a page
	// keep is the number of samples of each node: 4 minutes.
	keep = 120
	// keepNodes bounds the nodes with samples, and so the memory: 50 nodes need 144 kB.
	keepNodes = 50
)

// Snapshot is what the console knows of the cluster at one moment.
type Snapshot struct {
	At      time.Time
	Members []Member
	Rates   map[string]schema.Rates // by node id
	Past    map[string][]Sample     // by node id, oldest first
	Calls   map[edge]callRate       // calls per second, summed over all nodes
	Logs    map[logOf]float64       // log entries per second
	Grew    map[partOf]time.Time    // when the counter of an alert grew last, by node and alert
	// Recent are the calls of about the last minute, by application and called application, and by node and store.
	Recent map[partOf]callRate
}

// edge identifies the calls of one application by another.
type edge struct{ From, To string }

// callRate are calls per second.
type callRate struct{ All, Failed float64 }

// logOf identifies the log of a group at a node.
type logOf struct {
	Node  string
	Group uint64
}

// partOf identifies a part of a node or of an application, such as a store or an alert.
type partOf struct{ Of, Part string }

// recent is the time constant with which the weight of older calls in Snapshot.Recent decreases.
const recent = time.Minute

// Sample is one point of the charts of a node.
type Sample struct {
	Requests, Errors, P99, SyncP99, Entries, CPU float32
}

// watcher polls all nodes: periodically while any page is open, otherwise once for each page request. It is safe for
// concurrent use.
type watcher struct {
	cluster Cluster
	now     func() time.Time

	mu     sync.Mutex
	pages  map[chan<- struct{}]struct{} // open streams
	stop   context.CancelFunc           // ends the loop; nil = no page is open
	last   *Snapshot
	past   map[string][]Sample
	forget *time.Timer // drops last and past when no page was open or requested for keepTime

	polling sync.Mutex // one poll at a time
}

func newWatcher(c Cluster, now func() time.Time) *watcher {
	return &watcher{cluster: c, now: now, pages: map[chan<- struct{}]struct{}{}, past: map[string][]Sample{}}
}

// open keeps the snapshot up to date until closed is called. For each new snapshot, the watcher sends an element to the
// given channel. The channel needs a buffer of one element, because the watcher does not wait if the channel is full.
func (w *watcher) open(changed chan<- struct{}) (closed func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pages[changed] = struct{}{}
	if w.stop == nil {
		ctx, cancel := context.WithCancel(context.Background())
		w.stop = cancel
		go w.loop(ctx)
	}
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.pages, changed); len(w.pages) == 0 {
			w.stop()
			w.stop = nil
		}
	})
}

// loop polls until ctx ends.
func (w *watcher) loop(ctx context.Context) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		w.poll(ctx, pollEvery/2)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// current returns a snapshot that is less than pollEvery+pollTime old, or a new one.
func (w *watcher) current(ctx context.Context) *Snapshot {
	// The poll continues if the browser disconnects, because other pages use the answers of the nodes, too.
	return w.poll(context.WithoutCancel(ctx), pollEvery+pollTime)
}

// latest returns the newest snapshot, or nil before the first poll.
func (w *watcher) latest() *Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// poll returns the newest snapshot if it is younger than maxAge. Otherwise it requests the views of all nodes and
// returns a new snapshot. If ctx is canceled or no node is known, it returns the previous snapshot, if there is one.
func (w *watcher) poll(ctx context.Context, maxAge time.Duration) *Snapshot {
	w.polling.Lock()
	defer w.polling.Unlock()
	before := w.latest()
	if before != nil && w.now().Sub(before.At) < maxAge {
		return before
	}
	ctx, cancel := context.WithTimeout(ctx, pollTime)
	defer cancel()
	next := &Snapshot{At: w.now(), Members: w.cluster.Members(ctx)}
	if before != nil && (ctx.Err() == context.Canceled || len(next.Members) == 0) {
		return before
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if before != nil && next.At.Sub(before.At) > keepTime/2 { // rates over a long time would mislead
		before, w.past = nil, map[string][]Sample{}
	}
	if w.forget == nil {
		w.forget = time.AfterFunc(keepTime, w.drop)
	} else {
		w.forget.Reset(keepTime)
	}
	next.derive(before)
	w.remember(next)
	w.last = next
	for changed := range w.pages {
		select {
		case changed <- struct{}{}:
		default: // the page has not read the previous element
		}
	}
	return next
}

// drop frees the snapshots and samples, unless a page is open.
func (w *watcher) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pages) == 0 {
		w.last, w.past = nil, map[string][]Sample{}
	}
}

// remember adds the rates of s to the samples of the charts, and sets s.Past to these samples.
func (w *watcher) remember(s *Snapshot) {
	s.Past = map[string][]Sample{}
	for _, m := range s.Members {
		samples, known := w.past[m.Node]
		if len(s.Past) >= keepNodes {
			break
		}
		if r := s.Rates[m.Node]; r.Known {
			samples = append(samples, Sample{float32(r.Requests), float32(r.Errors), float32(r.P99),
				float32(r.SyncP99), float32(r.Entries), float32(r.CPU)})
		} else if m.View == nil && known {
			samples = append(samples, Sample{}) // the node does not answer
		}
		if extra := len(samples) - keep; extra > 0 {
			samples = append(samples[:0:0], samples[extra:]...)
		}
		s.Past[m.Node] = samples
	}
	w.past = s.Past // nodes that are gone are forgotten
}

// derive computes the rates of s from the differences to the parameter earlier, the previous snapshot. If earlier is
// nil, all rates are unknown.
func (s *Snapshot) derive(earlier *Snapshot) {
	s.Rates, s.Calls, s.Logs = map[string]schema.Rates{}, map[edge]callRate{}, map[logOf]float64{}
	s.Recent, s.Grew = map[partOf]callRate{}, map[partOf]time.Time{}
	older := map[string]*schema.NodeView{}
	if earlier != nil {
		for _, m := range earlier.Members {
			older[m.Node] = m.View
		}
		weight := max(0, 1-s.At.Sub(earlier.At).Seconds()/recent.Seconds())
		for key, r := range earlier.Recent {
			if r.All*weight > 0.1 {
				s.Recent[key] = callRate{r.All * weight, r.Failed * weight}
			}
		}
		for key, at := range earlier.Grew {
			if s.At.Sub(at) < firesFor {
				s.Grew[key] = at
			}
		}
	}
	for _, m := range s.Members {
		r := schema.RatesBetween(older[m.Node], m.View)
		s.Rates[m.Node] = r
		if r.Known {
			s.count(m, older[m.Node])
		}
	}
}

// count adds the calls, log entries and alerts of the node m to s. To compute these figures, it compares two views of
// the node: the previous view older and the current view m.View.
func (s *Snapshot) count(m Member, older *schema.NodeView) {
	seconds, calls, logs := m.View.At.Sub(older.At).Seconds(), map[edge]schema.AppCalls{}, map[string]float64{}
	counters := map[string]float64{}
	for i := range older.Alerts {
		counters[alertKey(&older.Alerts[i])] = older.Alerts[i].Count
	}
	for i := range m.View.Alerts {
		if one := &m.View.Alerts[i]; one.Grows && one.Count > counters[alertKey(one)] {
			s.Grew[partOf{m.Node, alertKey(one)}] = s.At
		}
	}
	for _, v := range [...]struct {
		sign float64
		*schema.Figures
	}{{-1, &older.Figures}, {1, &m.View.Figures}} {
		for _, c := range v.Stores {
			s.countRecent(storeOf(m.Node, c.Name), v.sign*c.Value, 0)
		}
		for _, c := range v.StoreErrors {
			s.countRecent(storeOf(m.Node, c.Name), 0, v.sign*c.Value)
		}
	}
	for _, c := range older.Figures.Calls {
		calls[edge{c.From, c.To}] = c
	}
	for _, c := range m.View.Figures.Calls {
		at := edge{c.From, c.To}
		rate, all := s.Calls[at], float64(schema.Grown(calls[at].Count, c.Count))
		failed := float64(schema.Grown(calls[at].Errors, c.Errors))
		rate.add(callRate{all / seconds, failed / seconds})
		s.Calls[at] = rate
		s.countRecent(partOf{c.From, c.To}, all, failed)
	}
	for _, c := range older.Figures.GroupLogs {
		logs[c.Name] = c.Value
	}
	for _, c := range m.View.Figures.GroupLogs {
		if id, err := strconv.ParseUint(c.Name, 10, 64); err == nil {
			s.Logs[logOf{m.Node, id}] = max(0, c.Value-logs[c.Name]) / seconds
		}
	}
}

// countRecent adds calls to s.Recent.
func (s *Snapshot) countRecent(part partOf, all, failed float64) {
	r := s.Recent[part]
	r.add(callRate{all, failed})
	s.Recent[part] = r
}

// storeOf returns the key under which Snapshot.Recent counts the calls of a node to a state store. The space in the key
// distinguishes it from the keys for calls between applications.
func storeOf(node, store string) partOf { return partOf{"node " + node, store} }

// failing reports whether many of the recent calls have failed.
func (c callRate) failing() bool { return c.Failed >= leastErrors && c.Failed/c.All > manyErrors }

// alertKey identifies an alert of a node.
func alertKey(a *schema.NodeAlert) string { return a.Name + " " + a.About + " " + a.Text }
