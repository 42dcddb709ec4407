package actors

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/component/state"
)

// Owner is the host of an actor.
type Owner struct {
	Session string // id of its session
	Node    string
	Server  string // server id of the node, by which the peer port finds it
}

// Registration describes a host to the directory.
type Registration struct {
	Session  string
	Revision uint64 // revision of the session to update; 0 = a new session
	Types    []string
	Draining bool
}

// Activation is the answer of Directory.Activate.
type Activation struct {
	Owner Owner
	Epoch uint64
	Token string // session token with which reads see all writes of earlier owners
}

// Advice says how a host helps to spread the actors of its application over the hosts.
type Advice struct {
	Take  []api.Actor // actors of which the directory made this host the owner
	Give  int         // how many actors the host should transfer to To
	To    string      // session of the other host
	Types []string    // actor types that the other host accepts
}

// Target is the host to which actors are transferred.
type Target struct {
	Session string // "" = none: the actors are only released
	Keep    bool   // an operator moves the actors; for a while, spreading does not move them again
}

// Released is an activation that its host gives up.
type Released struct {
	Type, ID string
	Epoch    uint64
}

// Directory records which host owns which actor of one application. Implementations are safe for concurrent use.
type Directory interface {
	// Register begins the session of a host, or updates its description. It returns the revision of the session. It
	// returns fault.NotFound if the session to update has ended.
	Register(ctx context.Context, r Registration) (revision uint64, err error)
	// Renew renews the session of a host. actors is the number of actors that the host has. gives reports whether the
	// host may transfer actors to hosts with fewer actors at the moment. Renew returns fault.NotFound if the session
	// has ended.
	Renew(ctx context.Context, session string, actors int, gives bool) (Advice, error)
	// Leave ends the session of a host.
	Leave(ctx context.Context, session string) error
	// Activate makes a host the owner of an actor, unless another host owns it, and returns the owner.
	Activate(ctx context.Context, session, kind, id string) (Activation, error)
	// Locate returns the host that owns an actor, or the host that should activate it. It returns fault.NotFound if no
	// host has the type.
	Locate(ctx context.Context, kind, id string) (Owner, error)
	// Release removes activations, so that any host can activate the actors.
	Release(ctx context.Context, released []Released) error
	// Transfer makes another host the owner of activations. It returns fault.NotFound if that host accepts no actors.
	Transfer(ctx context.Context, released []Released, to Target) error
}

// Directories returns the Directory of each application. Implementations are safe for concurrent use.
type Directories interface {
	// Claim records that an application of this node hosts a type, and returns its directory. It returns
	// fault.Conflict if another application hosts the type.
	Claim(ctx context.Context, app, kind string) (Directory, error)
	// Find returns the application that hosts a type in a namespace, and its directory. It returns fault.NotFound if
	// no application hosts the type. An empty namespace means the namespace of this node.
	Find(ctx context.Context, namespace, kind string) (app api.App, d Directory, err error)
}

// Carrier sends a call to the Runtime of another node. Carry returns fault.Unavailable if it is certain that the node
// has not received the call. All other errors are those of Runtime.Take.
type Carrier interface {
	Carry(ctx context.Context, to Owner, target api.App, c *Call) (Answer, error)
}

// Holdings records durably which applications may have actors in memory. The records survive a restart of the node.
// Implementations are safe for concurrent use.
type Holdings interface {
	// Begin records that an application may hold actors. held is true if this was already recorded, because an
	// earlier process of the node has not deactivated the actors of the application. held is valid even if err is
	// not nil.
	Begin(app string) (held bool, err error)
	// End records that an application holds no actors.
	End(app string) error
}

// Channel is the connection to an application.
type Channel interface {
	invoke.Channel
	// Healthy reports whether the application accepts calls, and otherwise why not.
	Healthy() (bool, string)
}

// App is an application that hosts actors. Implementations are safe for concurrent use.
type App interface {
	// Healthy reports whether the application accepts calls, and otherwise why not.
	Healthy() (bool, string)
	// Config asks which types the application hosts. known is false if it hosts none.
	Config(ctx context.Context) (c Config, known bool, err error)
	// Take executes one turn. It returns fault.Unavailable if the application certainly has not got the call, and
	// fault.Indeterminate if it may have. The answer may have any status and any headers.
	Take(ctx context.Context, t *Turn) (Answer, error)
	// Deactivate notifies the application that an actor is deactivated. After an error, the application may not have
	// received the notification.
	Deactivate(ctx context.Context, a api.Actor) error
}

// Turn is a call of an actor in the form in which the application receives it.
type Turn struct {
	*Call
	Epoch uint64
	Chain string // identifies the chain of reentrant calls; "" = the type is not reentrant
}

// Call is a call of a method, a reminder or a timer of an actor.
type Call struct {
	Actor    api.Actor
	Callback string // CallbackReminder, CallbackTimer, or "" for a method
	Method   string // a result of ParseMethod or CleanMethod; in a callback the name of the reminder or timer
	Verb     string // HTTP verb of the caller
	Header   http.Header
	Body     []byte
	Caller   invoke.Caller

	namespace string      // namespace of the actor; "" = that of this node
	only      *activation // the only activation that may execute the call; nil = any
}

// Callbacks are path segments. With such a segment, a request to an application is a tick of a reminder or a timer. For
// example, the path of a tick is /actors/{type}/{id}/method/remind/{name}. Requests without such a segment are method
// calls.
const (
	CallbackReminder = "remind"
	CallbackTimer    = "timer"
)

// Answer is the answer of an application.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Reminder describes a reminder or a timer of an actor. DueTime, Period and TTL are as the caller sent them.
type Reminder struct {
	Actor    api.Actor
	Name     string
	DueTime  string // of the first tick: RFC 3339, or a Go or ISO 8601 duration; "" = now
	Period   string // Go or ISO 8601 duration; R{n}/ before an ISO duration = n ticks; "" = one tick
	TTL      string // time from the first tick to the end; "" = no end
	Data     json.RawMessage
	Callback string         // only for a timer: the field callback of its ticks
	Policy   *api.JobPolicy // only for a reminder; nil = three retries, one second apart
}

// Reminders stores the reminders of actors in the replicated store. It delivers a tick each time a reminder is due.
// Implementations are safe for concurrent use.
//
// An application can use reminders only for the actor types that it hosts. For other types, Get and List find no
// reminders, and Put returns fault.NotFound.
type Reminders interface {
	// Put stores a reminder. It returns fault.Conflict if the actor has one with that name and overwrite is false, and
	// fault.Invalid if a time cannot be read.
	Put(ctx context.Context, app string, r *Reminder, overwrite bool) error
	// Get returns a reminder. found is false if there is none.
	Get(ctx context.Context, app string, a api.Actor, name string) (r Reminder, found bool, err error)
	// List returns a page of the reminders of an actor, or of all actors of its type if its ID is empty. The page
	// begins after the position in after; empty = at the first reminder. next is the position at the end of the page;
	// empty = there are no further reminders. Large reminders end a page early.
	List(ctx context.Context, app string, a api.Actor, after string) (page []Reminder, next string, err error)
	// Remove removes a reminder, if there is one with that name.
	Remove(ctx context.Context, app string, a api.Actor, name string) error
	// RemoveAll removes the reminders of an actor, or of all actors of its type if its ID is empty. After an error,
	// some may be removed.
	RemoveAll(ctx context.Context, app string, a api.Actor) error
}

// Plan is the sequence of the ticks of a timer. It is not safe for concurrent use.
type Plan interface {
	// Next returns the time until the next tick. The first call returns the time until the first tick. Next skips
	// ticks whose time has passed. ok is false if there is no further tick.
	Next() (wait time.Duration, ok bool)
}

// Config has the actor types that an application hosts, and the settings of each type.
type Config struct {
	Types map[string]*TypeConfig
}

// TypeConfig has the settings of one actor type.
type TypeConfig struct {
	IdleTimeout  time.Duration
	DrainTimeout time.Duration
	Reentrancy   bool
	MaxDepth     int
}

// The defaults of Dapr, except for the drain timeout.
const (
	defaultIdle  = time.Hour
	defaultDrain = 10 * time.Second
	defaultDepth = 32
)

// epochOf returns the epoch that a write of the activation must carry as a condition.
func (a *activation) epochOf(app string) *state.ActorEpoch {
	return &state.ActorEpoch{App: app, Type: a.key.Type, ID: a.key.ID, Epoch: a.epoch, Host: a.session,
		Revision: a.revision}
}
