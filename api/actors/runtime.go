package actors

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Options are the dependencies and settings of a Runtime. All are required.
type Options struct {
	Directories Directories
	Carrier     Carrier
	Node        func() string // id of this node
	NewID       func() string // a random id
	Reminders   Reminders
	// Plan returns the ticks of a timer from now on, or fault.Invalid if a time cannot be read.
	Plan func(t *Reminder) (Plan, error)
	// Allow applies the access rules of an application to a call.
	Allow func(in *invoke.Inbound) error
	// Policy returns the Resiliency policy for the actors of a type; nil = none. A nil function means that there are no
	// policies.
	Policy    func(actorType string) *resiliency.Policy
	PlaceTime time.Duration // how long a call may wait for an owner
	MaxAnswer int64         // bytes
	Holdings  Holdings      // nil = none are kept
	Metrics   *Metrics
	Logger    *slog.Logger
}

// Pauses and bounds of calls.
const (
	noHostWait  = 5 * time.Second // for a host of a type that no node hosts
	noHostPause = 100 * time.Millisecond
	movedPause  = 20 * time.Millisecond
	maxCached   = 100_000 // owners that a node remembers
)

// ReasonNoHost is the reason of an error: no node hosts the type.
const ReasonNoHost = "no_host"

// Runtime hosts and calls actors on one node. It is safe for concurrent use.
type Runtime struct {
	options Options

	mu     sync.Mutex
	hosts  map[string]*Host // by application
	owners map[ownerKey]Owner
	closed bool

	opened  bool
	pending map[string]App // applications that accepted calls before Open
}

type ownerKey struct {
	app   api.App
	actor api.Actor
}

// NewRuntime returns a Runtime without hosts.
func NewRuntime(o Options) *Runtime {
	if o.Policy == nil {
		o.Policy = func(string) *resiliency.Policy { return nil }
	}
	return &Runtime{options: o, hosts: map[string]*Host{}, owners: map[ownerKey]Owner{},
		pending: map[string]App{}}
}

// Open begins to ask applications which actors they host.
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
// the list of hosted actor types from the application. Returned does not block.
func (r *Runtime) Returned(app string, channel Channel) {
	r.attach(app, &httpApp{channel, &r.options})
}

// attach lets a host ask an application which actors it hosts.
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

// Close deactivates all actors of this node. It waits for each running turn, at most for the drain timeout of its
// actor.
func (r *Runtime) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	hosts := r.hosts
	r.mu.Unlock()
	var all sync.WaitGroup
	for _, h := range hosts {
		all.Go(func() { h.close(ctx) })
	}
	all.Wait()
	return nil
}

func (r *Runtime) host(app string) *Host {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hosts[app]
}

// Take executes a call of an actor that this node hosts. It returns fault.ActorMoved if this node does not host the
// actor, fault.Unavailable if the application has certainly not received the call, and fault.Indeterminate if the
// application may have received it.
func (r *Runtime) Take(ctx context.Context, target api.App, c *Call) (Answer, error) {
	h := r.host(target.ID)
	if h == nil {
		return Answer{}, errMoved("this node does not host the application " + target.ID)
	}
	if c.Callback != "" {
		return h.take(ctx, c)
	}
	method, err := invoke.ParseMethod("/" + url.PathEscape(c.Actor.Type) + "/" + url.PathEscape(c.Method))
	if err != nil {
		return Answer{}, fault.New(fault.Invalid, "actors.Call", "the method "+strconv.Quote(api.Shorten(c.Method))+
			" is not valid")
	}
	in := &invoke.Inbound{Target: target, Caller: c.Caller, Method: method,
		Request: &http.Request{Method: c.Verb, Header: c.Header}}
	if err := r.options.Allow(in); err != nil {
		return Answer{}, err
	}
	return h.take(ctx, c)
}

// Do calls an actor, wherever it is. It returns *api.Error.
func (r *Runtime) Do(ctx context.Context, c *Call) (Answer, error) {
	if err := state.ValidateActor(c.Actor.Type, c.Actor.ID); err != nil {
		return Answer{}, &api.Error{Kind: api.Malformed, Code: api.CodeMalformed, Message: fault.Text(err)}
	}
	if c.Method == "" {
		return Answer{}, &api.Error{Kind: api.Malformed, Code: api.CodeMalformed,
			Message: "the method of the actor is missing"}
	}
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

// repeat calls an actor as often as the policy of its type allows. Without a policy it calls the actor once.
func (r *Runtime) repeat(ctx context.Context, c *Call) (answer Answer, err error) {
	policy := r.options.Policy(c.Actor.Type)
	_ = policy.Repeat(ctx, func(ctx context.Context) error {
		answer, err = r.find(ctx, c)
		if again(policy, &answer, err) {
			return errors.New("repeat the call")
		}
		return nil
	})
	return answer, err
}

// again reports whether a policy repeats a call because of its result: a status that the policy names, or an error that
// another call may not have. A call that the application may have executed is repeated, as everywhere with a policy.
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

// find looks up the owner of the actor and calls it. It retries until the call was delivered or the time limit for
// finding an owner has passed.
func (r *Runtime) find(ctx context.Context, c *Call) (answer Answer, err error) {
	defer func() { r.options.Metrics.requested(&answer, err) }()
	begun := time.Now()
	for {
		answer, err = r.attempt(ctx, c, begun)
		wait := movedPause
		switch fault.CodeOf(err) {
		case fault.ActorMoved, fault.Unavailable, fault.NotLeader:
		case fault.NotFound:
			if time.Since(begun) >= noHostWait {
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

// attempt calls the presumed owner once.
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
	var answer Answer
	if owner.Node == r.options.Node() {
		c.Caller.Proven = true // by its listener
		answer, err = r.Take(ctx, app, c)
	} else {
		answer, err = r.options.Carrier.Carry(ctx, owner, app, c)
	}
	if err != nil {
		r.forget(key)
	}
	return answer, err
}

func (r *Runtime) owner(ctx context.Context, key ownerKey, d Directory) (Owner, error) {
	r.mu.Lock()
	owner, known := r.owners[key]
	r.mu.Unlock()
	if known {
		return owner, nil
	}
	owner, err := d.Locate(ctx, key.actor.Type, key.actor.ID)
	if err != nil {
		return Owner{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
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
		e.Kind, e.Code = api.Failed, api.CodeActorStackDepth
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
	case fault.TooLarge, fault.Invalid:
		return api.Malformed, api.ReasonTooLarge
	case fault.Overloaded:
		return api.Unavailable, api.ReasonOverloaded
	case fault.Unavailable, fault.ActorMoved, fault.NotLeader:
		return api.Unavailable, api.ReasonUnavailable
	case fault.Timeout:
		return api.Timeout, api.ReasonTimeout
	case fault.Indeterminate:
		return api.Indeterminate, api.ReasonIndeterminate
	}
	return api.Failed, api.ReasonInternal
}

// HandOver waits for the running turns of the given actors of an application of this node. It then transfers these
// actors to the host whose session has the given id. It returns how many of the actors were active here.
func (r *Runtime) HandOver(ctx context.Context, app string, all []api.Actor, to string) int {
	h := r.host(app)
	if h == nil {
		return 0
	}
	return h.handOver(ctx, all, to)
}

// Epoch implements api.ActorHosts.
func (r *Runtime) Epoch(app string, a api.Actor) (e *state.ActorEpoch, token string, hosts bool) {
	h := r.host(app)
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
