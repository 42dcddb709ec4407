package status

import (
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/node/components"
	"github.com/quorate/quorate/raftfsm"
)

// Network provides a Reporter with the state of the other nodes.
type Network interface {
	// Roster returns the nodes that gossip knows.
	Roster() *membership.Roster
	// PeerDown reports whether Raft cannot reach the peer port of a server, and since when.
	PeerDown(server string) (since time.Time, down bool)
}

// Control provides a Reporter with the state of the cluster and of the groups.
type Control interface {
	Issuer
	// Outside returns why the node is not a working member of the cluster; nil = it is one.
	Outside() *api.Reason
	// Unplaced returns a reason for each group in which this server waits to become a voter.
	Unplaced() []api.Reason
	// About returns how many log entries a server is behind the leader, and why the server is a voter or a
	// non-voter. It returns nil and "" if this node does not lead the group.
	About(group uint32, server string) (lag *uint64, reason string)
}

// Issuer reports problems that do not affect readiness.
type Issuer interface{ Issues() []schema.Issue }

// Security provides a Reporter with the state of the credentials between nodes.
type Security interface {
	Issuer
	Status() schema.SecurityStatus
}

// Backups provides a Reporter with the state of the scheduled backups.
type Backups interface {
	Issuer
	// Status returns nil if no backups are scheduled.
	Status() *schema.BackupStatus
}

// Channels are the channels to the applications of this node.
type Channels interface {
	// Channel returns the channel to an application, or nil if the node does not call the application.
	Channel(id string) *appchannel.Channel
}

// Actors are the actors of the applications of this node.
type Actors interface {
	// Registering reports whether the first registration of the actor types of an application is still in progress. ch
	// is the channel to the application.
	Registering(app string, ch *appchannel.Channel) bool
}

// Options are the facts that are known before anything is open.
type Options struct {
	Version    string   // of the program
	Cluster    string   // name of the cluster
	Role       string   // of the node
	Sidecar    bool     // the node holds no data
	Namespace  string   // of the applications
	Apps       []string // ids of the applications of this node
	Components *components.Components
	Channels   Channels
	Actors     Actors
	Front      *schema.FrontNode // the node of this process that serves the applications; nil = this node
	Now        func() time.Time
}

// Parts are the parts of the node that a Reporter uses once they are open.
type Parts struct {
	Host      *raftfsm.Host
	Network   Network
	Control   Control
	Security  Security
	Addresses Addresses
}

// Addresses are the addresses of the node.
type Addresses struct {
	DataDir string
	Metrics string // host:port; empty = off
	Gossip  string
	Peer    string
	Apps    []schema.AppStatus
}

// Reporter reports the state of one node. SetParts must be called before Status and Members. A Reporter is safe for
// concurrent use.
type Reporter struct {
	opts    Options
	started time.Time
	parts   atomic.Pointer[Parts]
	inputs  atomic.Pointer[Issuer]
	backups atomic.Pointer[Backups]
	ready   atomic.Bool
	closing atomic.Bool
}

// New returns the Reporter of a node that is starting now.
func New(o Options) *Reporter { return &Reporter{opts: o, started: o.Now()} }

// SetParts sets the parts that are open now. Call it once, before components are served.
func (r *Reporter) SetParts(p Parts) { r.parts.Store(&p) }

// SetInputs sets the runner of the input bindings.
func (r *Reporter) SetInputs(i Issuer) { r.inputs.Store(&i) }

// SetBackups sets the schedule of the backups.
func (r *Reporter) SetBackups(b Backups) { r.backups.Store(&b) }

// SetStarted records that every step of the start is done.
func (r *Reporter) SetStarted() { r.ready.Store(true) }

// SetStopping records that the node is stopping and thus is no longer ready. It does nothing if r is nil, because a
// start may fail before there is a Reporter.
func (r *Reporter) SetStopping() {
	if r != nil {
		r.closing.Store(true)
	}
}

// IsStarted reports whether every step of the start is done.
func (r *Reporter) IsStarted() bool { return r.ready.Load() }
