// Package jobs stores the jobs of applications in the replicated store, and delivers their ticks. A tick is one due run
// of a job. Package due decides when a tick is due. Package jobs chooses the instance of the application that gets the
// tick. If this instance is on another node, the package sends the tick to that node. The package owns the rule that
// chooses the instance for a tick, and the peer method that delivers the tick.
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

// PerInstance is the maximum number of job ticks that one instance of an application handles at the same time.
const PerInstance = 32

// method is the peer method that delivers a tick to an application on another node.
const method = "jobs.deliver"

// Applications gives access to the applications of this node that can receive ticks.
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

// Jobs stores and delivers the jobs of all applications. Until Open is called, all requests fail with
// fault.Unavailable. A Jobs is safe for concurrent use.
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

// Open starts to deliver due ticks, and makes the other methods available. The map observers has the observer of each
// application's ticks, by application id. An application may have no observer.
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

// instance returns a copy of i with only the fields that identify the instance. These fields never change.
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

// Deliver implements due.Deliverer. It delivers one tick of a job to an instance of the application, and records the
// attempt in the history. The instances get the ticks of a job in turn. An instance that already has PerInstance ticks
// in progress is skipped.
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

// deliver delivers a tick to an instance of the application. The result node is the id of the node on which this
// instance runs. It is empty if no instance can take the tick.
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

// turn returns the number that selects the instance for a tick. The number grows by one with each tick of a job and
// each repeated delivery, so the instances get the ticks of a job in turn. The first number differs for each job, so
// that jobs with a single tick do not all go to the same instance.
func turn(t *due.Tick) uint64 {
	const golden = 0x9e3779b97f4a7c15 // spreads revisions that are multiples of the number of instances
	return t.Revision*golden>>32 + t.Number + t.Attempt + t.Lost
}

// pick chooses the instance for a tick, and counts the tick as in progress on it. When the delivery has ended, the
// caller must call leave with the returned Instance.
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

// Method returns the peer method for ticks. When another node calls the method, this node delivers the tick to one of
// its applications.
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

// deliver delivers a tick to an application of this node. The first byte of the returned answer is a due.Result. If
// this result is due.Failed, the reason for the failure follows as text. deliver returns an error if the application
// has given no answer.
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
