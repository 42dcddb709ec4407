package node

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node/components"
	"github.com/quorate/quorate/node/subscriptions"
)

const (
	settle     = 200 * time.Millisecond // files must not change for this long before they are read
	retryEvery = 30 * time.Second       // default of Components.Retry
)

// Prefixes of the reasons in the issues that a reload causes.
const (
	notApplied = "a change was not applied: "
	notServed  = "not served, because of ignoreErrors: "
)

// reloads replaces components when their files change.
type reloads struct {
	node   *Node
	forced chan struct{} // holds a value after Node.Reload
	count  *prometheus.CounterVec
	good   prometheus.Gauge
	last   prometheus.Gauge

	mu      sync.Mutex
	set     *loader.Set
	seen    string         // fingerprint of the files that were read last
	failing []string       // reasons why the running components differ from the files
	retired sync.WaitGroup // goroutines that close replaced components
	closing chan struct{}
}

func newReloads(n *Node, set *loader.Set) *reloads {
	r := &reloads{node: n, set: set, forced: make(chan struct{}, 1), closing: make(chan struct{}),
		count: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_reloads_total",
			Help: "Times that changed component files were read. The result refused means that a file is wrong, " +
				"failed that a component could not be opened; both keep what was there, except components with " +
				"ignoreErrors."}, []string{"result"}),
		good: prometheus.NewGauge(prometheus.GaugeOpts{Name: "quorate_reload_ok",
			Help: "1 if the node runs the components in its component files, 0 if one could not be opened or the " +
				"last change could not be applied."}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{Name: "quorate_reload_last_timestamp_seconds",
			Help: "Unix time at which changed component files were read last; 0 if not since the start."}),
	}
	for _, result := range []string{"applied", "failed", "refused"} {
		r.count.WithLabelValues(result)
	}
	var failing []string
	for _, e := range set.Ignored() {
		failing = append(failing, notServed+fault.Text(e))
	}
	r.fail(failing)
	n.deps.Registry.MustRegister(r.count, r.good, r.last)
	r.seen = r.fingerprint()
	return r
}

// Reload makes the node read its component files now. It returns at once.
func (n *Node) Reload() {
	if n.apis.reloads == nil {
		return
	}
	select {
	case n.apis.reloads.forced <- struct{}{}:
	default: // one is pending
	}
}

func (r *reloads) fingerprint() string {
	c := r.node.config.Components
	return loader.Fingerprint(slices.Concat(c.Paths, c.ConfigFiles))
}

// follow looks for changed files until ctx ends.
func (r *reloads) follow(ctx context.Context) {
	every := r.node.config.Components.Reload
	if every <= 0 || r.node.apis.declared.NoReload {
		every = time.Duration(1<<63 - 1) // only when forced
	}
	look := time.NewTicker(every)
	defer look.Stop()
	retry := time.NewTicker(cmp.Or(r.node.config.Components.Retry, retryEvery))
	defer retry.Stop()
	for {
		forced, again := false, false
		select {
		case <-ctx.Done():
			return
		case <-r.forced:
			forced = true
		case <-retry.C:
			again = len(r.Issues()) > 0 && !r.node.apis.declared.NoReload && r.fingerprint() == r.seen
			if !again {
				continue
			}
		case <-look.C:
		}
		if forced || again || r.fingerprint() != r.seen {
			r.once(ctx, again)
		}
	}
}

// once waits until the files no longer change, reads them, and applies the changes. The parameter repeated is true for
// a retry of components that could not be opened. A retry logs only new failures.
func (r *reloads) once(ctx context.Context, repeated bool) {
	for now := r.fingerprint(); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
		next := r.fingerprint()
		if next == now {
			break
		}
		now = next
	}
	r.seen = r.fingerprint()
	changes, err := r.apply(ctx)
	if ctx.Err() != nil {
		return
	}
	r.report(changes, err, repeated)
}

// apply reads the files and replaces the changed components. If it returns an error, nothing was replaced.
func (r *reloads) apply(ctx context.Context) (loader.Changes, error) {
	n := r.node
	set, changes, err := components.Reload(ctx, n.config.sources(n.deps), n.componentOptions(), r.set)
	if err != nil {
		return changes, err
	}
	// A component that could not be opened is only in the statuses.
	if !changes.Any() && reflect.DeepEqual(set.Statuses(), r.set.Statuses()) {
		return changes, changes.Close()
	}
	err = errors.Join(n.apis.inputs.Check(set.Bindings()), subscriptions.Check(set.Subscriptions()))
	if err == nil {
		err = n.applyRules(set, changes.Documents)
	}
	if err != nil {
		return loader.Changes{}, errors.Join(err, loader.Compare(set, r.set).Close())
	}
	n.apis.dapr.loaded(n.config.App.ID, r.set.Statuses(), set.Statuses(), changes)
	n.components.Serve(set)
	r.mu.Lock()
	r.set = set
	r.mu.Unlock()
	if err := n.apis.inputs.Update(ctx, set.Bindings()); err != nil {
		n.deps.Logger.Warn("a replaced input binding could not be stopped", "error", err)
	}
	bounded, cancel := context.WithTimeout(ctx, subscriptionsEnd)
	n.apis.subscribers.Update(bounded, set.Subscriptions())
	cancel()
	r.closeLater(changes)
	return changes, nil
}

// subscriptionsEnd limits how long a reload waits for applications to finish their messages. The reload waits only for
// messages whose subscription or component has changed.
const subscriptionsEnd = 30 * time.Second

// subscriptions returns the Subscription documents of the node.
func (r *reloads) subscriptions() []component.Subscription {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.set.Subscriptions()
}

// closeLater closes replaced components after the request timeout, because requests may use them until then. If the
// node closes earlier, closeLater closes them at once.
func (r *reloads) closeLater(changes loader.Changes) {
	r.retired.Go(func() {
		select {
		case <-time.After(r.node.config.API.RequestTimeout):
		case <-r.closing:
		}
		if err := changes.Close(); err != nil {
			r.node.deps.Logger.Warn("a replaced component could not be closed", "error", err)
		}
	})
}

// fail stores the reasons why the running components differ from the component files. If failing is empty, the running
// components agree with the files.
func (r *reloads) fail(failing []string) {
	r.good.Set(1)
	if len(failing) > 0 {
		r.good.Set(0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failing = failing
}

// appliedFields returns the fields of the log line about changes.
func appliedFields(c loader.Changes) []any {
	var documents []string
	if c.Documents {
		documents = append(documents, "Configuration or Resiliency")
	}
	if c.Subscriptions {
		documents = append(documents, "Subscription")
	}
	var fields []any
	for _, f := range []struct {
		name  string
		names []string
	}{{"added", c.Added}, {"changed", c.Changed}, {"removed", c.Removed}, {"changed_documents", documents}} {
		if len(f.names) > 0 {
			fields = append(fields, f.name, strings.Join(f.names, ", "))
		}
	}
	return fields
}

// report logs and counts the outcome of a reload. If repeated is true, the reload was a retry, and only new failures
// are logged.
func (r *reloads) report(c loader.Changes, err error, repeated bool) {
	log := r.node.deps.Logger
	var failing []string
	add := func(e error, reason, message string) {
		reason += fault.Text(e)
		failing = append(failing, reason)
		if !repeated || !slices.Contains(r.failing, reason) {
			log.Error(message, "error", fault.Text(e))
		}
	}
	for _, e := range append(loader.Each(err), c.Failed...) {
		add(e, notApplied, "a change of the component files was not applied; what was there stays in use")
	}
	ignored := c.Ignored
	if err != nil {
		ignored = r.set.Ignored() // nothing was replaced, so these components still fail
	}
	for _, e := range ignored {
		add(e, notServed, "a component failed; it is not served, because it has ignoreErrors: true")
	}
	if c.Any() {
		log.Info("changed component files were applied", appliedFields(c)...)
	}
	result := "applied"
	switch {
	case err != nil:
		result = "refused"
	case len(failing) > 0:
		result = "failed"
	case !c.Any() && len(r.Issues()) == 0:
		log.Info("the component files were read; nothing has changed")
	}
	r.count.WithLabelValues(result).Inc()
	r.last.Set(float64(r.node.deps.Now().Unix()))
	r.fail(failing)
}

// Issues returns an issue for each change that the last reload could not apply, and for each component with
// ignoreErrors that could not be opened.
func (r *reloads) Issues() (out []schema.Issue) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range r.failing {
		out = append(out, schema.Issue{About: "component files", Reason: text})
	}
	return out
}

// close closes all components.
func (r *reloads) close() error {
	close(r.closing)
	r.retired.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.set.Close()
}

// componentOptions returns the dependencies of components.
func (n *Node) componentOptions() components.Options {
	return components.Options{Host: n.host, Logger: n.deps.Logger, Metrics: n.apis.componentMetrics}
}

// issues joins the issues of several parts.
type issues []interface{ Issues() []schema.Issue }

// Issues implements status.Issuer.
func (all issues) Issues() (out []schema.Issue) {
	for _, one := range all {
		out = append(out, one.Issues()...)
	}
	return out
}
