package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The operations on jobs and actors:
//
//   - createJob and createReminder create a job or a reminder that is due in an hour.
//   - fireJobs and fireReminders create many jobs or reminders that are due at the same time. They measure the
//     deliveries to the application.
//   - paceJobs and paceReminders measure deliveries with evenly spaced due times, at half of the rate that fireJobs or
//     fireReminders has reached.
//   - appCall and actorCall call the application or an actor.
//
// The latency of a delivery is the time from the due time to the call of the application.
const (
	createJob      operation = "create a job"
	createReminder operation = "create a reminder"
	fireJobs       operation = "jobs due at one moment"
	fireReminders  operation = "reminders due at one moment"
	paceJobs       operation = "jobs at half the rate"
	paceReminders  operation = "reminders at half the rate"
	appCall        operation = "call of the application"
	actorCall      operation = "call of an actor"
)

// fires reports whether an operation measures deliveries of jobs or reminders. The number of clients does not matter
// for such an operation.
func (o operation) fires() bool {
	return o == fireJobs || o == fireReminders || o == paceJobs || o == paceReminders
}

// reminds reports whether an operation is about reminders.
func (o operation) reminds() bool {
	return o == createReminder || o == fireReminders || o == paceReminders
}

const (
	workerType = "Worker"        // of all actors
	workers    = 1000            // actors that have reminders
	firstLead  = 3 * time.Second // from the start of the creation to the first due time; doubled if too short
	readyTime  = 5 * time.Second // timeout of a request while the system starts
	actorTries = 10              // attempts to call an actor
	lastFire   = 2 * time.Minute // how long to wait for the last delivery
)

// runner is a system that runs jobs and hosts actors for an application of this process.
type runner struct {
	*forwarder
	nodes []string // addresses of the HTTP APIs
	app   *dueApp
	count int // number of jobs or reminders in one turn that measures deliveries
	lead  time.Duration
	run   int                   // number of the last turn
	rates map[operation]float64 // deliveries per second of each operation, over all its turns
	calls []*bare
}

func newRunner(f *forwarder, nodes []string, app *dueApp, count int) *runner {
	f.address, f.path = nodes[0], invokePath
	return &runner{forwarder: f, nodes: nodes, app: app, count: count, lead: firstLead, rates: map[operation]float64{}}
}

func (r *runner) end() {
	r.forwarder.end()
	r.app.end()
}

// connections returns n HTTP clients with one connection each, spread over the nodes.
func (r *runner) connections(n int) []*bare {
	for i := len(r.calls); i < n; i++ {
		r.calls = append(r.calls, &bare{address: r.nodes[i%len(r.nodes)]})
	}
	return r.calls[:n]
}

// running waits until every node can call the application and its actors, and can store jobs and reminders.
func (r *runner) running(ctx context.Context) (store, error) {
	r.run++
	for i, c := range r.connections(len(r.nodes)) {
		for _, op := range []operation{appCall, actorCall, createJob, createReminder} {
			number := i - len(r.nodes)
			if err := until(ctx, func() error {
				// each attempt has a new number, because an attempt without an answer may have stored its job
				number += len(r.nodes)
				bounded, cancel := context.WithTimeout(ctx, readyTime) // a sidecar may delay a call to an actor
				defer cancel()
				return r.once(bounded, c, op, i, number, time.Hour)
			}); err != nil {
				defer r.end()
				return nil, r.failed(fmt.Errorf("%s: %w", op, err))
			}
		}
	}
	return r, nil
}

// once makes one request of an operation: the request with number i, by the client with the given number. If the
// operation creates a job or a reminder, the parameter due is how far in the future its due time is.
func (r *runner) once(ctx context.Context, c *bare, op operation, client, i int, due time.Duration) error {
	body := fmt.Appendf(nil, `{"dueTime":%q}`, due)
	return r.request(ctx, c, op, client, i, body)
}

func (r *runner) request(ctx context.Context, c *bare, op operation, client, i int, body []byte) error {
	name := strconv.Itoa(r.run) + "-" + strconv.Itoa(i)
	var err error
	switch {
	case op == appCall:
		_, err = c.fetch(ctx, http.MethodGet, r.path, nil)
	case op == actorCall: // may fail if a busy machine delays the system
		for range actorTries {
			if _, err = c.fetch(ctx, http.MethodPost, "/v1.0/actors/"+workerType+"/"+strconv.Itoa(client)+
				"/method/value", []byte("{}")); err == nil || ctx.Err() != nil {
				break
			}
		}
	case op.reminds():
		_, err = c.fetch(ctx, http.MethodPost, "/v1.0/actors/"+workerType+"/"+strconv.Itoa(i%workers)+"/reminders/"+
			name, body)
	default:
		_, err = c.fetch(ctx, http.MethodPost, "/v1.0-alpha1/jobs/"+name, body)
	}
	return err
}

// measure implements meter.
func (r *runner) measure(ctx context.Context, f *figures, op operation, clients int, _ string,
	duration time.Duration) error {
	r.run++
	calls := r.connections(clients)
	if !op.fires() {
		return loop(ctx, f, r, clients, duration, func(ctx context.Context, client, i int) error {
			return r.once(ctx, calls[client], op, client, i, time.Hour)
		})
	}
	gap := time.Duration(0)
	if base := map[operation]operation{paceJobs: fireJobs, paceReminders: fireReminders}[op]; base != "" {
		if r.rates[base] == 0 {
			return fmt.Errorf("%q must be measured before %q", base, op)
		}
		gap = time.Duration(2 * float64(time.Second) / r.rates[base])
	}
	for {
		first := time.Now().Add(r.lead).Truncate(time.Second).Add(time.Second)
		r.app.expect(r.run, r.count)
		if err := r.createAll(ctx, op, calls, first, gap); err != nil {
			return err
		}
		if time.Now().Before(first) {
			return r.fire(ctx, f, op, first, gap)
		}
		r.lead *= 2
		if err := r.app.wait(ctx, lastFire); err != nil {
			return err
		}
		r.run++
	}
}

// createAll creates r.count jobs or reminders for one turn. The due times are first, first+gap, first+2*gap, and so on.
// It returns the first error.
func (r *runner) createAll(ctx context.Context, op operation, calls []*bare, first time.Time,
	gap time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for client, c := range calls {
		all.Go(func() {
			for i := client; i < r.count && ctx.Err() == nil; i += len(calls) {
				due := first.Add(time.Duration(i) * gap).UTC().Format("2006-01-02T15:04:05.000Z")
				if err := r.request(ctx, c, op, client, i, fmt.Appendf(nil, `{"dueTime":%q}`, due)); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// fire waits until all jobs or reminders of a turn have been delivered, and adds the deliveries to f. The parameters
// first and gap are those of createAll.
func (r *runner) fire(ctx context.Context, f *figures, op operation, first time.Time, gap time.Duration) error {
	time.Sleep(time.Until(first)) // the deliveries begin at this time
	before, known := r.cpu()
	if err := r.app.wait(ctx, lastFire+time.Duration(r.count)*gap); err != nil {
		return err
	}
	after, ok := r.cpu()
	if ok && known {
		f.cpu += after - before
	}
	last := first
	for i, at := range r.app.arrivals() {
		f.add(at.Sub(first.Add(time.Duration(i) * gap)))
		if at.After(last) {
			last = at
		}
	}
	took := last.Sub(first)
	f.elapsed += took
	f.turns = append(f.turns, float64(r.count)/took.Seconds())
	r.rates[op] = f.rate()
	return nil
}

// dueApp is the application that receives the jobs and reminders. It records when each job or reminder of the current
// turn arrives.
type dueApp struct {
	server *http.Server
	port   string

	mu   sync.Mutex
	run  string
	at   []time.Time   // arrival of each job or reminder; zero = has not arrived
	left int           // number of jobs or reminders that have not arrived
	done chan struct{} // closed when all have arrived
}

func startDueApp() (*dueApp, error) {
	a := &dueApp{done: make(chan struct{})}
	var err error
	a.server, a.port, err = serveLocally(a)
	return a, err
}

func (a *dueApp) end() { _ = a.server.Close() }

// ServeHTTP implements http.Handler.
func (a *dueApp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch dir, name := splitPath(r.URL.Path); {
	case r.URL.Path == "/dapr/config":
		_, _ = io.WriteString(w, `{"entities":["`+workerType+`"]}`)
	case name == "value", r.Method == http.MethodDelete:
		_, _ = io.WriteString(w, "{}")
	case dir == "/job" || strings.HasSuffix(dir, "/method/remind"):
		_, _ = io.Copy(io.Discard, r.Body)
		a.arrive(name, time.Now())
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func splitPath(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 0)], path[i+1:]
}

// expect begins a turn with n jobs or reminders. run is the number of the turn.
func (a *dueApp) expect(run, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.run, a.at, a.left, a.done = strconv.Itoa(run), make([]time.Time, n), n, make(chan struct{})
}

// arrive records the first delivery of the job or reminder with the given name, and ignores further deliveries. A name
// has the form RUN-NUMBER.
func (a *dueApp) arrive(name string, at time.Time) {
	run, number, _ := strings.Cut(name, "-")
	i, err := strconv.Atoi(number)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil || run != a.run || i < 0 || i >= len(a.at) || !a.at[i].IsZero() {
		return
	}
	a.at[i] = at
	if a.left--; a.left == 0 {
		close(a.done)
	}
}

// wait waits until all jobs or reminders of the turn have arrived, but at most for limit.
func (a *dueApp) wait(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	a.mu.Lock()
	done := a.done
	a.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		a.mu.Lock()
		defer a.mu.Unlock()
		return fmt.Errorf("%d of %d jobs or reminders have not arrived: %w", a.left, len(a.at), ctx.Err())
	}
}

// arrivals returns the arrival time of each job or reminder of the current turn. The caller must first wait until all
// of them have arrived.
func (a *dueApp) arrivals() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at
}

// dueQuorate returns an opener that starts n nodes, each with an instance of the application. The title selects the
// quorate program, as in findQuorate.
func dueQuorate(title string, n int) opener {
	return func(ctx context.Context, s *settings, dir string) (store, error) {
		program, p, err := findQuorate(title, s, dir)
		if p == nil || err != nil {
			return nil, err
		}
		app, err := startDueApp()
		if err != nil {
			return nil, err
		}
		f := &forwarder{processes: p, title: title, text: fmt.Sprintf("%s, nodes: %d %s",
			firstLine(program, "version"), n, strings.Join(s.quorateArgs, " "))}
		c, err := p.startCluster(ctx, program, n, append([]string{"--app-id", "app", "--app-port", app.port},
			s.quorateArgs...)...)
		if err != nil {
			defer func() { f.end(); app.end() }()
			return nil, f.failed(err)
		}
		r := newRunner(f, addressesOf(c), app, s.keys)
		return r.running(ctx)
	}
}

// dueDaprd returns an opener that starts Dapr with n sidecars, each with an instance of the application.
func dueDaprd(n int) opener {
	return func(ctx context.Context, s *settings, dir string) (store, error) {
		app, err := startDueApp()
		if err != nil {
			return nil, err
		}
		d, err := startDapr(s, dir, n, "--app-port", app.port)
		if err != nil {
			app.end()
			return nil, err
		}
		return newRunner(&forwarder{processes: d.processes, title: "daprd", text: d.text}, d.http, app,
			s.keys).running(ctx)
	}
}
