// Package jobs connects the jobs of applications with the replicated store. A tick is one due run of a job. The
// package owns the choice of the instance that gets a tick, and the call between nodes that delivers it. Package due
// decides when a tick is due.
//
// It has no goroutines.
package jobs

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/jobproto"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/due"
)

// PerInstance is how many ticks of jobs one instance of an application may handle at a time.
const PerInstance = 32

// method is the name of the peer method that delivers a tick to an application of another node.
const method = "jobs.deliver"

// Applications gives access to the applications of this node that have a channel, so that ticks can reach them.
type Applications interface {
	// Callee returns the name under which an application is called.
	Callee(id string) api.App
	// Channel returns the channel to an application, or nil if the application has none.
	Channel(id string) *appchannel.Channel
	// Policy returns the Resiliency policy for calls to an application.
	Policy(app api.App) *resiliency.Policy
}

// Observer is notified of ticks that were delivered to an application of this node.
type Observer interface {
	// JobDelivered is called after the application has answered. ok is true if it has handled the tick.
	JobDelivered(ok bool, took time.Duration)
}

// Peers calls other nodes.
type Peers interface {
	Call(ctx context.Context, server, method string, payload []byte) ([]byte, error)
}

// Jobs stores and delivers the jobs of all applications. Before Open, requests fail with fault.Unavailable. Jobs is
// safe for concurrent use.
type Jobs struct {
	open atomic.Pointer[parts]

	mu       sync.Mutex
	underWay map[discovery.Instance]int // ticks in progress, by the identity that the function instance returns

	history history
}

type parts struct {
	work      due.Client
	apps      Applications
	observers map[string]Observer // by application
	places    *discovery.Catalogue
	peers     Peers
}

// Open starts the delivery of due ticks, and enables the other methods. observers has the observers of jobs by
// application id. An application need not have an observer.
func (j *Jobs) Open(host *raftfsm.Host, apps Applications, observers map[string]Observer,
	places *discovery.Catalogue, peers Peers) {
	j.underWay = map[discovery.Instance]int{}
	j.open.Store(&parts{host.DueWork(), apps, observers, places, peers})
	host.DueWork().Deliver(due.KindJob, j)
}

// home returns the place where package due keeps the jobs of an application.
func home(app api.App) due.Home {
	return due.Home{Kind: due.KindJob, Store: "system", Prefix: invoke.CanonicalNamespace(app.Namespace) + "/" + app.ID}
}

// appOf returns the application of a home.
func appOf(h due.Home) api.App {
	namespace, id, _ := strings.Cut(h.Prefix, "/")
	return api.App{ID: id, Namespace: namespace}
}

func (j *Jobs) parts() (*parts, error) {
	if p := j.open.Load(); p != nil {
		return p, nil
	}
	return nil, fault.New(fault.Unavailable, "jobs", "this node is starting")
}

// PutJob implements api.JobStore.
func (j *Jobs) PutJob(ctx context.Context, app api.App, job *api.Job, overwrite bool) error {
	p, err := j.parts()
	if err != nil {
		return err
	}
	put := due.Put{Home: home(app), Name: job.Name, Due: job.DueTime, TTL: job.TTL, Overwrite: overwrite,
		Spec: due.Spec{Schedule: job.Schedule, Payload: job.Record, Policy: due.DefaultPolicy()}}
	if p := job.Policy; p != nil {
		put.Spec.Policy = due.NewPolicy(p.Retry, p.MaxRetries, p.Interval)
	}
	if job.Repeats != nil {
		put.Spec.Repeats = uint64(*job.Repeats)
	}
	_, err = p.work.Put(ctx, put)
	return err
}

// Job implements api.JobStore.
func (j *Jobs) Job(ctx context.Context, app api.App, name string) (api.Job, bool, error) {
	p, err := j.parts()
	if err != nil {
		return api.Job{}, false, err
	}
	w, found, err := p.work.Get(ctx, home(app), name)
	return api.Job{Name: name, Record: w.Spec.Payload}, found, err
}

// Jobs implements api.JobStore.
func (j *Jobs) Jobs(ctx context.Context, app api.App, prefix, after string, limit int) ([]api.Job, bool, error) {
	p, err := j.parts()
	if err != nil {
		return nil, false, err
	}
	list, more, err := p.work.List(ctx, home(app), prefix, after, limit)
	out := make([]api.Job, len(list))
	for i := range list {
		out[i] = api.Job{Name: list[i].Name, Record: list[i].Spec.Payload}
	}
	return out, more, err
}

// RemoveJob implements api.JobStore.
func (j *Jobs) RemoveJob(ctx context.Context, app api.App, name string) error {
	p, err := j.parts()
	if err != nil {
		return err
	}
	_, err = p.work.Remove(ctx, home(app), name)
	return err
}

// RemoveJobs implements api.JobStore.
func (j *Jobs) RemoveJobs(ctx context.Context, app api.App, prefix string) error {
	p, err := j.parts()
	if err != nil {
		return err
	}
	return p.work.RemovePrefix(ctx, home(app), prefix)
}

// instance returns the identity of an instance: the instance with only those fields that never change.
func instance(i *discovery.Instance) discovery.Instance {
	return discovery.Instance{App: i.App, Node: i.Node, Boot: i.Boot}
}

// Room implements due.Deliverer.
func (j *Jobs) Room(h due.Home) int {
	p, err := j.parts()
	if err != nil {
		return 0
	}
	app, callable := appOf(h).Canonical(), map[discovery.Instance]bool{}
	for _, i := range p.places.View().Instances(app) {
		if i.Healthy && i.Protocol != "" {
			callable[instance(&i)] = true
		}
	}
	if len(callable) == 0 {
		return 0
	}
	n := len(callable) * PerInstance
	j.mu.Lock()
	defer j.mu.Unlock()
	for key, ticks := range j.underWay {
		if key.App == app && !callable[key] {
			n += ticks
		}
	}
	return n
}

// Deliver implements due.Deliverer. It delivers a tick of a job to an instance of the application, and records the
// attempt in the history. The ticks of a job go to the instances in turn. An instance with PerInstance ticks in
// progress gets no further tick.
func (j *Jobs) Deliver(ctx context.Context, t *due.Tick) (due.Result, error) {
	p, err := j.parts()
	if err != nil {
		return due.Undelivered, err
	}
	begun := time.Now()
	r, node, err := j.deliver(ctx, p, t)
	j.history.add(t, node, begun, r, err)
	return r, err
}

// deliver delivers a tick to an instance of the application. node is the id of the node with this instance, or empty
// if there is none.
func (j *Jobs) deliver(ctx context.Context, p *parts, t *due.Tick) (r due.Result, node string, err error) {
	l, key, err := j.pick(p, appOf(t.Home), turn(t))
	if err != nil {
		return due.Undelivered, "", err
	}
	defer j.leave(key)
	e := event{id: appOf(t.Home).ID, name: t.Name, tick: fmt.Sprintf("%d.%d", t.Revision, t.Number), attempt: t.Attempt,
		record: t.Payload}
	var answer []byte
	if l.Instance.Local {
		answer, err = e.deliver(ctx, p)
	} else {
		answer, err = p.peers.Call(ctx, l.Instance.Server, method, e.encode())
	}
	if err != nil || len(answer) == 0 {
		if fault.Is(err, fault.Unavailable) {
			l.Done(discovery.Unreachable)
		} else {
			l.Done(discovery.Failed)
		}
		return due.Undelivered, key.Node, err
	}
	l.Done(discovery.OK)
	if r = due.Result(answer[0]); r != due.Failed {
		return r, key.Node, nil
	}
	return due.Failed, key.Node, fault.New(fault.Internal, "jobs", string(answer[1:]))
}

// turn returns a number that grows by one with each tick of the job, and with each repeated delivery of a tick. So
// the deliveries of a job go to the instances in turn. Jobs begin at different numbers, so that jobs with only one
// tick are spread over the instances too.
func turn(t *due.Tick) uint64 {
	const golden = 0x9e3779b97f4a7c15 // spreads revisions that are multiples of the number of instances
	return t.Revision*golden>>32 + t.Number + t.Attempt + t.Lost
}

// pick chooses the instance for a tick, and counts the tick in underWay. The caller must call leave with the
// returned identity of the instance.
func (j *Jobs) pick(p *parts, app api.App, turn uint64) (*discovery.Lease, discovery.Instance, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var full []discovery.Instance
	for key, n := range j.underWay {
		if n >= PerInstance && key.App == app.Canonical() {
			full = append(full, key)
		}
	}
	l, err := p.places.PickInTurn(app, turn, full)
	if err != nil {
		return nil, discovery.Instance{}, err
	}
	key := instance(&l.Instance)
	j.underWay[key]++
	return l, key, nil
}

func (j *Jobs) leave(key discovery.Instance) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.underWay[key]--; j.underWay[key] <= 0 {
		delete(j.underWay, key)
	}
}

// event is a tick that is being delivered to an application.
type event struct {
	id      string // of the application
	name    string
	tick    string
	attempt uint64
	record  []byte
}

func (e *event) encode() []byte {
	var b []byte
	for _, text := range [...]string{e.id, e.name, e.tick} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	return append(binary.AppendUvarint(b, e.attempt), e.record...)
}

// Method returns the peer method by which other nodes deliver ticks to the applications of this node.
func (j *Jobs) Method() peer.Method {
	return peer.Method{Name: method, Handle: func(ctx context.Context, r peer.Request) ([]byte, error) {
		p, err := j.parts()
		if err != nil {
			return nil, err
		}
		in := lenprefix.Reader{Rest: r.Payload}
		e := event{id: in.Text(), name: in.Text(), tick: in.Text(), attempt: in.Uvarint()}
		if e.record = in.All(); in.Bad {
			return nil, fault.New(fault.Invalid, "jobs", "a tick of a job cannot be decoded")
		}
		return e.deliver(ctx, p)
	}}
}

// deliver delivers a tick to an application of this node. The first byte of the result is a due.Result. After
// due.Failed, the text of the failure follows. An error means that the application gave no answer.
func (e *event) deliver(ctx context.Context, p *parts) ([]byte, error) {
	channel := p.apps.Channel(e.id)
	if channel == nil {
		return nil, fault.New(fault.Unavailable, "jobs", "this node does not call the application "+e.id)
	}
	if healthy, why := channel.Healthy(); !healthy {
		return nil, fault.New(fault.Unavailable, "jobs", why)
	}
	job, err := jobproto.Decode(e.record)
	if err != nil {
		return append([]byte{byte(due.Failed)}, fault.Text(err)...), nil
	}
	target := p.apps.Callee(e.id)
	known, err := take(ctx, p.apps.Policy(target), target, "job/"+e.name, func(ctx context.Context) (bool, error) {
		begun := time.Now()
		known, err := channel.TakeJob(ctx, &appchannel.JobEvent{Name: e.name, Data: job.GetData(),
			Body: jobproto.Body(job.GetData()), Tick: e.tick, Attempt: e.attempt})
		if o := p.observers[e.id]; o != nil && (err == nil || appchannel.AnswerOf(err) != nil) {
			o.JobDelivered(err == nil && known, time.Since(begun))
		}
		return known, err
	})
	switch {
	case err == nil && known:
		return []byte{byte(due.Done)}, nil
	case err == nil:
		return []byte{byte(due.Unknown)}, nil
	case fault.Is(err, fault.Internal), fault.Is(err, fault.Corrupt), fault.Is(err, fault.Invalid),
		fault.Is(err, fault.TooLarge): // the answer was refused, or the tick cannot be sent; a retry would fail too
		return append([]byte{byte(due.Failed)}, fault.Text(err)...), nil
	}
	return nil, err
}
