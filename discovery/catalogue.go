package discovery

import (
	"context"
	"log/slog"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/discovery/records"
)

// App identifies an application. In its canonical form, the default namespace is the empty string.
type App = records.App

// ParseApp parses the name of an application. "orders.prod" is in the namespace prod, and "orders" is in the given
// namespace.
func ParseApp(text, namespace string) App { return records.ParseApp(text, namespace) }

// Record describes one application that this node serves.
type Record struct {
	App      App
	Protocol string // http, https, h2c, grpc or grpcs; empty = it has no port and cannot be called
	Healthy  bool
}

// Member is an incarnation of a node that gossip knows.
type Member = records.Member

// Incarnation is one run of one node.
type Incarnation = records.Incarnation

// Options are the arguments of New.
type Options struct {
	Self   Incarnation // this node and its incarnation, as in gossip
	Server string      // id under which other nodes dial this node's peer port
	// Ask sends a question to the peer port of another node and returns the result of that node's Catalogue.Answer.
	// peer is the Member.Peer that was passed to Members. If Ask is nil, the catalogue cannot pull records.
	Ask func(ctx context.Context, peer string, question []byte) ([]byte, error)
	// Arrival is the time within which a node that joins others normally meets one of them, counted from New. Until
	// this node has met one, or Arrival has passed, Pick does not conclude that no node serves an application. 0 = the
	// node joins no others.
	Arrival time.Duration
	// WhyUnhealthy returns why an application of this node is unhealthy, or "" if it is healthy. It is optional.
	WhyUnhealthy func(App) string
	Bounds       records.Bounds // zero = defaults
	Logger       *slog.Logger
	Registerer   prometheus.Registerer
	Now          func() time.Time // nil = time.Now
	Chance       func(n int) int  // random number from 0 to n-1, to choose among equal instances; nil = math/rand
}

// Catalogue contains what this node knows about all applications of the cluster. It is usable directly after New, and
// learns by gossip which applications other nodes serve. All methods are safe for concurrent use.
type Catalogue struct {
	opts    Options
	begun   time.Time
	view    atomic.Pointer[View]
	metrics *metrics

	standings sync.Map // map from standingKey to *standing
	loads     sync.Map // map from App to *atomic.Int64: calls in flight of this node's own applications

	mu      sync.Mutex // guards the fields below
	machine *records.Machine
	shown   uint64 // version of machine that view shows
	met     bool   // Members was called with another node
	closed  bool

	cancel context.CancelFunc
	tasks  sync.WaitGroup
	wake   chan struct{} // one slot; an element wakes the loop of run
}

// New returns an empty Catalogue and registers its metrics. It returns fault.Internal if they are already registered.
func New(o Options) (*Catalogue, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Chance == nil {
		o.Chance = rand.IntN
	}
	c := &Catalogue{opts: o, begun: o.Now(), machine: records.New(records.Options{Self: o.Self, Bounds: o.Bounds}),
		wake: make(chan struct{}, 1)}
	c.view.Store(&View{catalogue: c, changed: make(chan struct{})})
	c.metrics = newMetrics(c)
	return c, c.metrics.register(o.Registerer)
}

// Self returns this node and its incarnation.
func (c *Catalogue) Self() Incarnation { return c.opts.Self }

// Open starts the goroutine that broadcasts changes and pulls missing records.
func (c *Catalogue) Open() {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.tasks.Go(func() { c.run(ctx) })
}

// Close stops the goroutines that Open started, waits for them, and unregisters the metrics. Pick still works
// afterwards. Close is idempotent.
func (c *Catalogue) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
	c.tasks.Wait()
	if first {
		c.metrics.unregister(c.opts.Registerer)
	}
	return nil
}

// Serve replaces the list of applications that this node serves. It returns fault.Invalid if a record is invalid or
// an application is listed twice, and fault.TooLarge if the list exceeds what a node can announce. After an error,
// nothing has changed.
func (c *Catalogue) Serve(apps []Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	load := map[App]uint8{}
	for _, e := range c.machine.Served() {
		load[e.App] = e.Load
	}
	var entries []records.Entry
	for _, a := range apps {
		app := a.App.Canonical()
		entries = append(entries, records.Entry{App: app, Protocol: records.Protocol(a.Protocol), Healthy: a.Healthy,
			Load: load[app]})
	}
	err := c.machine.Serve(entries)
	c.publish()
	return err
}

// SetHealth sets the reported health of an application. It does nothing if this node does not serve the application.
func (c *Catalogue) SetHealth(app App, healthy bool) {
	if c.change(app, func(e *records.Entry) { e.Healthy = healthy }) && healthy {
		c.readmit(func(k standingKey) bool { return k.incarnation == c.opts.Self && k.app == app.Canonical() })
	}
}

// SetLoad sets how many calls an application of this node is serving. It is cheap enough to be called at the start
// and end of every call. The value is sent to other nodes at intervals.
func (c *Catalogue) SetLoad(app App, inFlight int) {
	app = app.Canonical()
	n, ok := c.loads.Load(app)
	if !ok {
		n, _ = c.loads.LoadOrStore(app, new(atomic.Int64))
	}
	n.(*atomic.Int64).Store(int64(inFlight))
}

// weigh copies the loads that were set with SetLoad into this node's record. The caller holds mu.
func (c *Catalogue) weigh() {
	served := c.machine.Served()
	news := false
	for i := range served {
		if n, ok := c.loads.Load(served[i].App); ok {
			load := uint8(bits.Len64(uint64(max(n.(*atomic.Int64).Load(), 0))))
			news = news || load != served[i].Load
			served[i].Load = load
		}
	}
	if news {
		_ = c.machine.Serve(served) // the record fitted before, and no entry grew
	}
}

// change changes one entry of this node's record. It returns false if the record has no entry of app.
func (c *Catalogue) change(app App, f func(*records.Entry)) bool {
	app = app.Canonical()
	c.mu.Lock()
	defer c.mu.Unlock()
	served := c.machine.Served()
	for i := range served {
		if served[i].App == app {
			f(&served[i])
			_ = c.machine.Serve(served) // the record fitted before, and no entry grew
			c.publish()
			return true
		}
	}
	return false
}

// Members sets the list of all node incarnations that gossip knows. An incarnation is one run of a node's process.
// When Members returns, the View contains only instances on live nodes.
func (c *Catalogue) Members(list []Member) {
	c.mu.Lock()
	back := c.returned(list)
	c.met = c.met || slices.ContainsFunc(list, func(m Member) bool { return m.Node != c.opts.Self.Node })
	c.machine.Members(c.opts.Now(), list)
	c.publish()
	c.mu.Unlock()
	c.readmit(func(k standingKey) bool { return back[k.incarnation] })
	c.prune()
	c.wakeLoop()
}

// returned returns the incarnations that are alive in list, but were not alive at the previous call of Members.
func (c *Catalogue) returned(list []Member) map[Incarnation]bool {
	back := map[Incarnation]bool{}
	for _, m := range list {
		if m.State == records.Alive && !c.machine.Alive(m.Incarnation) {
			back[m.Incarnation] = true
		}
	}
	return back
}

// publish creates a new View if anything changed. The caller holds mu.
func (c *Catalogue) publish() {
	if v := c.machine.Version(); v != c.shown {
		c.shown = v
		old := c.view.Load()
		c.view.Store(&View{catalogue: c, records: c.machine.Records(), changed: make(chan struct{})})
		close(old.changed)
		c.wakeLoop()
	}
}

// View returns the current view.
func (c *Catalogue) View() *View { return c.view.Load() }
