package discovery

import (
	"context"
	"log/slog"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/discovery/records"
)

// App names an application. Its canonical form has an empty namespace for the default one.
type App = records.App

// ParseApp reads "orders", which is in the namespace given, or "orders.prod".
func ParseApp(text, namespace string) App { return records.ParseApp(text, namespace) }

// Record is what this node says about one application it serves.
type Record struct {
	App      App
	Protocol string // http, https, h2c, grpc or grpcs; empty = it has no port and cannot be called
	Healthy  bool
}

// Member is a run of a node that gossip knows.
type Member = records.Member

// Life is one run of one node.
type Life = records.Life

// Options are the arguments of New.
type Options struct {
	Self   Life   // this node and its run, as gossip knows them
	Server string // id under which others dial this node's peer port
	// Ask sends a question to another node's peer port, under the id that Members gave, and
	// returns the answer of its Catalogue's Answer. nil = nobody can be asked.
	Ask        func(ctx context.Context, peer string, question []byte) ([]byte, error)
	Bounds     records.Bounds // zero = defaults
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time // nil = time.Now
	Chance     func(n int) int  // a number below n, to choose among equals; nil = at random
}

// Catalogue is what this node knows of all applications of the cluster. It works alone from
// the moment it is made; as a channel of the gossip it learns what others serve. All methods
// are safe for concurrent use.
type Catalogue struct {
	opts    Options
	begun   time.Time
	view    atomic.Pointer[View]
	metrics *metrics

	standings sync.Map // standingKey to *standing
	loads     sync.Map // App to *atomic.Int64: calls in flight, of this node's own

	mu      sync.Mutex // guards what follows
	machine *records.Machine
	shown   uint64 // version of the machine that view has
	closed  bool

	cancel context.CancelFunc
	tasks  sync.WaitGroup
	wake   chan struct{} // one slot: there may be something to pull
}

// New makes a Catalogue of nothing, and registers its metrics.
func New(o Options) (*Catalogue, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Chance == nil {
		o.Chance = rand.IntN
	}
	c := &Catalogue{opts: o, begun: o.Now(), machine: records.New(records.Options{Self: o.Self, Bounds: o.Bounds}), wake: make(chan struct{}, 1)}
	c.view.Store(&View{catalogue: c, changed: make(chan struct{})})
	c.metrics = newMetrics(c)
	return c, c.metrics.register(o.Registerer)
}

// Self is this node and its run.
func (c *Catalogue) Self() Life { return c.opts.Self }

// Open begins to tell others of changes and to pull what is missing.
func (c *Catalogue) Open() {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.tasks.Go(func() { c.run(ctx) })
}

// Close ends what Open began and waits for it. It is idempotent; Pick goes on working.
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

// Serve replaces what this node says about its applications. Errors are of code invalid or
// too_large, and then nothing changes.
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
		entries = append(entries, records.Entry{App: app, Protocol: records.Protocol(a.Protocol), Healthy: a.Healthy, Load: load[app]})
	}
	err := c.machine.Serve(entries)
	c.publish()
	return err
}

// SetHealth changes whether this node says that an application of its own is healthy. For
// applications it does not serve it does nothing.
func (c *Catalogue) SetHealth(app App, healthy bool) {
	if c.change(app, func(e *records.Entry) { e.Healthy = healthy }) && healthy {
		c.readmit(func(k standingKey) bool { return k.life == c.opts.Self && k.app == app.Canonical() })
	}
}

// SetLoad tells how many calls an application of this node is serving. It costs next to
// nothing: call it at every begin and end. Others learn of it now and then.
func (c *Catalogue) SetLoad(app App, inFlight int) {
	app = app.Canonical()
	n, ok := c.loads.Load(app)
	if !ok {
		n, _ = c.loads.LoadOrStore(app, new(atomic.Int64))
	}
	n.(*atomic.Int64).Store(int64(inFlight))
}

// weigh puts the loads into this node's record. The caller holds mu.
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
		_ = c.machine.Serve(served) // it fitted before, and no longer entry came
	}
}

// change changes one entry of this node's record; it reports whether there is one.
func (c *Catalogue) change(app App, f func(*records.Entry)) bool {
	app = app.Canonical()
	c.mu.Lock()
	defer c.mu.Unlock()
	served := c.machine.Served()
	for i := range served {
		if served[i].App == app {
			f(&served[i])
			_ = c.machine.Serve(served) // it fitted before, and no longer entry came
			c.publish()
			return true
		}
	}
	return false
}

// Members takes in every run of a node that gossip knows. Instances of those that are not
// alive are gone from the View when it returns.
func (c *Catalogue) Members(list []Member) {
	c.mu.Lock()
	back := c.returned(list)
	c.machine.Members(c.opts.Now(), list)
	c.publish()
	c.mu.Unlock()
	c.readmit(func(k standingKey) bool { return back[k.life] })
	c.prune()
	c.stir()
}

// returned are the lives that were not alive and are.
func (c *Catalogue) returned(list []Member) map[Life]bool {
	back := map[Life]bool{}
	for _, m := range list {
		if m.State == records.Alive && !c.machine.Alive(m.Life) {
			back[m.Life] = true
		}
	}
	return back
}

// publish makes a new View if anything in it is new. The caller holds mu.
func (c *Catalogue) publish() {
	if v := c.machine.Version(); v != c.shown {
		c.shown = v
		old := c.view.Load()
		c.view.Store(&View{catalogue: c, records: c.machine.Records(), changed: make(chan struct{})})
		close(old.changed)
	}
}

// View returns what this node knows now.
func (c *Catalogue) View() *View { return c.view.Load() }
