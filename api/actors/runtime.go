package actors

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Options are the dependencies and settings of a Runtime. All fields are required, except Policy, KeepActors, HostWait
// and Holdings.
type Options struct {
	Directories Directories
	Carrier     Carrier
	Node        func() string // id of this node
	Namespace   string        // of this node, canonical
	NewID       func() string // a random id
	Reminders   Reminders
	// Plan returns the ticks of a timer from now on, or fault.Invalid if a time cannot be read.
	Plan func(t *Reminder) (Plan, error)
	// Allow applies the access rules of an application to a call.
	Allow func(in *invoke.Inbound) error
	// Policy returns the Resiliency policy for the actors of a type; nil = none. A nil function means that there are
	// no policies.
	Policy    func(actorType string) *resiliency.Policy
	PlaceTime time.Duration // how long a call may wait for an owner
	// KeepActors keeps active actors on this node when other hosts have fewer.
	KeepActors bool
	HostWait   time.Duration // how long a call waits for a host of a type that no node hosts; 0 = DefaultHostWait
	MaxAnswer  int64         // bytes
	Holdings   Holdings      // nil = nothing is recorded
	Metrics    *Metrics
	Logger     *slog.Logger
}

// DefaultHostWait is the default of Options.HostWait.
const DefaultHostWait = 5 * time.Second

// Pauses and bounds of calls.
const (
	noHostPause = 100 * time.Millisecond
	movedPause  = 20 * time.Millisecond
	maxCached   = 100_000 // owners that a node remembers
)

// ReasonNoHost is the reason of the error for an actor type that no node hosts.
const ReasonNoHost = "no_host"

// Runtime hosts and calls actors on one node. It is safe for concurrent use.
type Runtime struct {
	options Options

	mu     sync.Mutex
	hosts  map[string]*Host // by application
	owners map[ownerKey]Owner
	ticks  map[hostKey]int // number of ticks of reminders that this node is delivering
	closed bool

	opened  bool
	pending map[string]App // applications that accepted calls before Open
}

type ownerKey struct {
	app   api.App
	actor api.Actor
}

// hostKey identifies a host of actors.
type hostKey struct {
	app  api.App
	node string
}

// NewRuntime returns a Runtime without hosts.
func NewRuntime(o Options) *Runtime {
	if o.Policy == nil {
		o.Policy = func(string) *resiliency.Policy { return nil }
	}
	o.HostWait = cmp.Or(o.HostWait, DefaultHostWait)
	return &Runtime{options: o, hosts: map[string]*Host{}, owners: map[ownerKey]Owner{}, ticks: map[hostKey]int{},
		pending: map[string]App{}}
}

// Open allows the Runtime to request the actor types of applications. The Runtime first requests them from the
// applications that already accept calls.
func (r *Runtime) Open() {
	r.mu.Lock()
	r.opened = true
	pending := r.pending
	r.pending = nil
	r.mu.Unlock()
	for app, a := range pending {
		r.attach(app, a)
	}
}

// Returned notifies the Runtime that an application of this node accepts calls over HTTP. The Runtime then requests
// the hosted actor types from the application. Returned does not block.
func (r *Runtime) Returned(app string, channel Channel) {
	r.attach(app, &httpApp{channel, &r.options})
}

// attach connects an application to its host, which then requests the actor types.
//
// Before Open, attach only stores the connection, and an HTTP connection does not replace a stored one. After Drain or
// Close, attach does nothing.
func (r *Runtime) attach(app string, a App) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return
	case !r.opened:
		if _, http := a.(*httpApp); !http || r.pending[app] == nil {
			r.pending[app] = a
		}
		return
	}
	h := r.hosts[app]
	if h == nil {
		h = newHost(app, &r.options)
		r.hosts[app] = h
	}
	h.returned(a)
}

// Drain deactivates all actors of this node while their applications still run, and prevents further activations on
// this node. It waits for each running turn, at most the drain timeout of the actor type. Waiting calls continue at
// the new owners.
func (r *Runtime) Drain(ctx context.Context) {
	r.each(func(h *Host) { h.drain(ctx) })
}

// Close does the same as Drain. It then ends the sessions of the hosts, and waits until the goroutines of the hosts
// have ended.
func (r *Runtime) Close(ctx context.Context) error {
	r.each(func(h *Host) { h.close(ctx) })
	return nil
}

// each makes attach ignore all further connections. It then calls f for all hosts concurrently, and waits until all
// these calls have returned.
func (r *Runtime) each(f func(h *Host)) {
	r.mu.Lock()
	r.closed = true
	hosts := r.hosts
	r.mu.Unlock()
	var all sync.WaitGroup
	for _, h := range hosts {
		all.Go(func() { f(h) })
	}
	all.Wait()
}

func (r *Runtime) host(app string) *Host {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hosts[app]
}

// Take executes a call of an actor that this node hosts. These errors report what the application has received:
//
//	actor_moved    nothing, because this node does not host the actor
//	unavailable    nothing
//	indeterminate  perhaps the call
//	corrupt        the call, but its answer was refused
//
// Take also returns the errors of calls that it refuses, such as fault.Invalid, fault.Denied and fault.Overloaded.
func (r *Runtime) Take(ctx context.Context, target api.App, c *Call) (Answer, error) {
	h := r.host(target.ID)
	if h == nil {
		return Answer{}, errMoved("this node does not host the application " + target.ID)
	}
	if err := state.ValidateActor(c.Actor.Type, c.Actor.ID); err != nil {
		return Answer{}, err
	}
	if c.Callback != "" {
		if problem := api.NameProblem(c.Method); problem != "" {
			return Answer{}, fault.New(fault.Invalid, "actors.Call", "the name of the callback "+problem)
		}
		if c.Callback == callbackSetTimer || c.Callback == callbackRemoveTimer {
			return h.changeTimer(ctx, target, c)
		}
		return h.take(ctx, c)
	}
	method, err := checkMethod(c.Actor.Type, c.Method)
	if err != nil {
		return Answer{}, err
	}
	in := &invoke.Inbound{Target: target, Caller: c.Caller, Method: method,
		Request: &http.Request{Method: c.Verb, Header: c.Header}}
	if err := r.options.Allow(in); err != nil {
		return Answer{}, err
	}
	return h.take(ctx, c)
}

// Do calls an actor on behalf of an application of this node. The actor may be on any node. Do may change the header
// of the call. All errors are *api.Error.
func (r *Runtime) Do(ctx context.Context, c *Call) (Answer, error) {
	if err := state.ValidateActor(c.Actor.Type, c.Actor.ID); err != nil {
		return Answer{}, &api.Error{Kind: api.Malformed, Code: api.CodeMalformed, Message: fault.Text(err)}
	}
	if c.DecodedMethod() == "" {
		return Answer{}, &api.Error{Kind: api.Malformed, Code: api.CodeMalformed,
			Message: "the method of the actor is missing"}
	}
	r.verifyChain(c.Caller.ID, c.Header)
	answer, err := r.repeat(ctx, c)
	switch {
	case err != nil:
		return Answer{}, failed(c, err)
	case answer.Status == http.StatusNotFound:
		return Answer{}, &api.Error{Kind: api.Failed, Code: api.CodeActorInvoke,
			Message: "error invoke actor method: actor method not found: " + api.Shorten(c.Method),
			Details: api.Details{Reason: api.ReasonNotFound}}
	case answer.Status < 200 || answer.Status > 299:
		return Answer{}, &api.Error{Kind: api.Failed, Code: api.CodeActorInvoke,
			Message: "error invoke actor method: error from actor service: (" + strconv.Itoa(answer.Status) + ") " +
				string(answer.Body)}
	}
	return answer, nil
}

// repeat calls an actor, and retries as often as the policy of the actor type permits. Without a policy, it makes one
// attempt. It returns fault.Indeterminate if the last attempt was not executed, but an earlier attempt may have been
// executed.
func (r *Runtime) repeat(ctx context.Context, c *Call) (answer Answer, err error) {
	policy, attempts, doubt := r.options.Policy(c.Actor.Type), 0, false
	_ = policy.Repeat(ctx, func(ctx context.Context) error {
		doubt = doubt || attempts > 0 && !notExecuted(err)
		attempts++
		answer, err = r.find(ctx, c)
		if again(policy, &answer, err) {
			return errors.New("repeat the call")
		}
		return nil
	})
	if doubt && notExecuted(err) {
		err = &fault.Error{Code: fault.Indeterminate, Op: "actors.Call", Err: err,
			Msg: "an earlier attempt may have been executed"}
	}
	return answer, err
}

// notExecuted reports whether the error of an attempt says that the application has not executed the call.
func notExecuted(err error) bool {
	switch fault.CodeOf(err) {
	case fault.ActorMoved, fault.Unavailable, fault.NotLeader, fault.NotFound, fault.Timeout, fault.Overloaded:
		return true
	}
	return false
}

// again reports whether a call with this result may be repeated. For an answer of the application, the policy decides
// by the status. For an error, again returns true if the error may be temporary, even if the application may have
// executed the call.
func again(p *resiliency.Policy, answer *Answer, err error) bool {
	switch fault.CodeOf(err) {
	case "":
		return p != nil && p.RetryStatus(&http.Response{StatusCode: answer.Status, Header: answer.Header})
	case fault.ActorMoved, fault.Unavailable, fault.NotLeader, fault.NotFound, fault.Indeterminate, fault.Timeout,
		fault.Overloaded:
		return true
	}
	return false
}

// find looks up the owner of the actor and sends the call to this owner. If the owner has certainly not received the
// call, find retries for at most Options.PlaceTime. If no node hosts the actor type, find retries for at most
// Options.HostWait.
func (r *Runtime) find(ctx context.Context, c *Call) (answer Answer, err error) {
	defer func() { r.options.Metrics.requested(&answer, err) }()
	return r.place(ctx, c)
}

// place does the same as find, but does not count the call in the metrics.
func (r *Runtime) place(ctx context.Context, c *Call) (answer Answer, err error) {
	begun := time.Now()
	for {
		tried := time.Now()
		answer, err = r.attempt(ctx, c, begun)
		wait := movedPause
		switch fault.CodeOf(err) {
		case fault.ActorMoved:
			begun = begun.Add(time.Since(tried)) // the owner was found; the wait for the turn does not count
		case fault.Unavailable, fault.NotLeader:
		case fault.NotFound:
			if time.Since(begun) >= r.options.HostWait {
				return answer, err
			}
			wait = noHostPause
		default:
			return answer, err
		}
		if time.Since(begun) >= r.options.PlaceTime || ctx.Err() != nil {
			return answer, err
		}
		sleep(ctx, wait)
	}
}

// attempt finds the owner of the actor and sends the call to this owner once. begun is the start of the search for the
// owner, which may take Options.PlaceTime. If the call fails, attempt removes the owner from the cache.
func (r *Runtime) attempt(ctx context.Context, c *Call, begun time.Time) (Answer, error) {
	placing, cancel := context.WithDeadline(ctx, begun.Add(r.options.PlaceTime))
	app, d, err := r.options.Directories.Find(placing, c.namespace, c.Actor.Type)
	key := ownerKey{app, c.Actor}
	var owner Owner
	if err == nil {
		owner, err = r.owner(placing, key, d)
	}
	cancel()
	if err != nil {
		if !fault.Is(err, fault.NotFound) && ctx.Err() == nil {
			err = notDelivered(err)
		}
		return Answer{}, err
	}
	if c.Callback == CallbackReminder {
		defer r.delivering(hostKey{app, owner.Node})()
	}
	var answer Answer
	if owner.Node == r.options.Node() {
		c.Caller.Proven, c.Caller.Local = true, true // the call comes from this node
		answer, err = r.Take(ctx, app, c)
	} else {
		answer, err = checked(r.options.Carrier.Carry(ctx, owner, app, c))
	}
	if err != nil {
		r.forget(key)
	}
	return answer, err
}

// owner returns the presumed owner of an actor, from a cache or from the directory d. It caches only owners on other
// nodes, because the host on this node knows which actors it owns.
func (r *Runtime) owner(ctx context.Context, key ownerKey, d Directory) (Owner, error) {
	r.mu.Lock()
	owner, known := r.owners[key]
	h := r.hosts[key.app.ID]
	r.mu.Unlock()
	if known {
		return owner, nil
	}
	here := r.options.Node()
	if h != nil && key.app.Namespace == r.options.Namespace && h.owns(key.actor) {
		return Owner{Node: here}, nil
	}
	owner, err := d.Locate(ctx, key.actor.Type, key.actor.ID)
	if err != nil || owner.Node == here {
		return owner, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key.actor.Type, key.actor.ID = strings.Clone(key.actor.Type), strings.Clone(key.actor.ID) // frees the request text
	if len(r.owners) >= maxCached {
		clear(r.owners)
	}
	r.owners[key] = owner
	return owner, nil
}

func (r *Runtime) forget(key ownerKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owners, key)
}

// failed returns the public error of a call.
func failed(c *Call, err error) *api.Error {
	e := &api.Error{Kind: api.Failed, Code: api.CodeActorInvoke, Cause: err,
		Message: "error invoke actor method: " + fault.Text(err),
		Details: api.Details{Metadata: api.Attributes("actorType", c.Actor.Type, "actorID", c.Actor.ID)}}
	e.Kind, e.Details.Reason = verdict(err)
	switch code := fault.CodeOf(err); {
	case err == errDepth || fault.Is(err, fault.TooLarge) && fault.Text(err) == errDepth.Msg:
		e.Kind, e.Code, e.Message, e.Details = api.Failed, api.CodeActorStackDepth, errDepth.Msg, api.Details{}
	case code == fault.NotFound:
		e.Message = "error invoke actor method: did not find address for actor '" + c.Actor.Type + "/" + c.Actor.ID +
			"': no node hosts the type"
		e.Details.Reason = ReasonNoHost
	case code == fault.Denied:
		e.Code = api.CodePermissionDenied
	}
	return e
}

// verdict returns the kind and the reason of a failure.
func verdict(err error) (kind api.Kind, reason string) {
	switch fault.CodeOf(err) {
	case fault.Denied:
		return api.Denied, api.ReasonDenied
	case fault.Invalid:
		return api.Malformed, ""
	case fault.TooLarge:
		return api.Malformed, api.ReasonTooLarge
	case fault.Overloaded:
		return api.Unavailable, api.ReasonOverloaded
	case fault.Unavailable, fault.ActorMoved, fault.NotLeader:
		return api.Unavailable, api.ReasonUnavailable
	case fault.Timeout:
		return api.Timeout, api.ReasonTimeout
	case fault.Indeterminate:
		return api.Indeterminate, api.ReasonIndeterminate
	case fault.Corrupt:
		return api.BadAnswer, api.ReasonBadAnswer
	}
	return api.Failed, api.ReasonInternal
}

// HandOver transfers actors of an application of this node to the host with the session id target. It waits up to 5 s
// for running turns to end. It returns the number of actors that have moved, and the number that stay because their
// turn did not end in time. Actors that are not active here are not counted.
//
// If ctx ends first, HandOver returns fault.Indeterminate, and the transfer continues.
func (r *Runtime) HandOver(ctx context.Context, app string, all []api.Actor,
	target string) (moved, busy int, err error) {
	h := r.host(app)
	if h == nil {
		return 0, 0, nil
	}
	return h.handOver(ctx, all, target)
}

// Tried reports whether the first attempt to register the actor types of an application of this node has ended, with or
// without success. Once the result is true, it stays true.
func (r *Runtime) Tried(app string) bool {
	h := r.host(app)
	return h != nil && h.wasTried()
}

// started returns the host of an application of this node, or nil if there is none. If the actor types of the
// application are not known yet, started waits for them, at most Options.HostWait.
func (r *Runtime) started(ctx context.Context, app string) *Host {
	h := r.host(app)
	for begun := time.Now(); h != nil && h.starting() && time.Since(begun) < r.options.HostWait && ctx.Err() == nil; {
		sleep(ctx, noHostPause)
	}
	return h
}

// Epoch implements api.ActorHosts.
func (r *Runtime) Epoch(ctx context.Context, app string, a api.Actor) (e *state.ActorEpoch, token string, hosts bool) {
	h := r.started(ctx, app)
	if h == nil || !h.hosts() {
		return nil, "", false
	}
	e, token, _ = h.epoch(a)
	return e, token, true
}

// Wrote implements api.ActorHosts.
func (r *Runtime) Wrote(app string, a api.Actor, epoch uint64, token string, moved bool) {
	if h := r.host(app); h != nil {
		h.wrote(a, epoch, token, moved)
	}
}

// Active returns how many actors of each type an application hosts on this node.
func (r *Runtime) Active(app string) map[string]int {
	if h := r.host(app); h != nil {
		return h.counts()
	}
	return nil
}
