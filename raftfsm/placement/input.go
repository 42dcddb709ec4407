package placement

import (
	"strings"
	"time"
)

// State is the state of a node as gossip reports it.
type State uint8

// The states of a node.
const (
	Alive  State = iota + 1 // it answers
	Left                    // it stopped gracefully and is expected back
	Failed                  // it stopped answering
)

// Server is one entry of the group's Raft configuration, as the leader sees it.
type Server struct {
	ID       string // server id: the node id, a dot, and the random id of the data directory
	Voter    bool   // votes; otherwise it only replicates
	LagKnown bool   // Lag was reported recently by the server itself
	Lag      uint64 // log entries it is behind the leader
	// SteadySince is the time since when Lag has stayed within Limits.MaxLag (see Steady). It is zero if Lag is
	// above MaxLag or not reported.
	SteadySince time.Time
}

// Member is one node of the cluster, in its newest incarnation. An Input has at most one Member per node id.
type Member struct {
	Node     string    // node id
	Server   string    // server id; empty for a sidecar, which holds no data
	State    State     // a State outside the constants counts as Failed
	Since    time.Time // when it entered State
	SlowDisk bool      // its disk is slow: it should not become the leader
	LowDisk  bool      // its disk is nearly full: it should not lead
}

// Limits are the settings of the policy. The zero value of a field takes its default.
type Limits struct {
	MaxLag uint64        // entries a non-voter may lag and still become a voter; default 256
	Stable time.Duration // how long a non-voter must stay within MaxLag before it becomes a voter; default 5s
	// Settle is how long a voter must be gone before its vote moves. It is also how long a new leader must have led
	// before Leaders may move its group. Default 1m.
	Settle time.Duration
	// Forget is how long a failed non-voter stays in the configuration. Default 24h; negative means forever.
	Forget time.Duration
}

// WithDefaults returns l with defaults for the fields that are zero.
func (l Limits) WithDefaults() Limits {
	if l.MaxLag == 0 {
		l.MaxLag = 256
	}
	if l.Stable == 0 {
		l.Stable = 5 * time.Second
	}
	if l.Settle == 0 {
		l.Settle = time.Minute
	}
	if l.Forget == 0 {
		l.Forget = 24 * time.Hour
	}
	return l
}

// Input contains everything that a decision about one group depends on, as the leader of the group sees it. No function
// of this package changes an Input. The order of its lists does not matter.
type Input struct {
	Group       uint32
	Voters      int       // wanted number of voters; below 1 counts as 1
	Leader      string    // server id of the leader; empty = there is none
	LeaderSince time.Time // when the leader was elected; zero = a long time ago
	Servers     []Server  // the group's configuration
	Members     []Member  // every node gossip has seen, sidecars too
	Held        bool      // an operator chose the leader: Leaders leaves the group where it is
	Removed     []string  // server ids an operator removed; they never come back
	Now         time.Time
	// Watching is when this leader began to observe the nodes; zero = now. A server without a Member counts as
	// failed since then.
	Watching time.Time
	Limits   Limits
}

// NodeOf returns the node id within a server id: the part before the last dot.
func NodeOf(server string) string {
	if i := strings.LastIndexByte(server, '.'); i >= 0 {
		return server[:i]
	}
	return server
}

// Steady returns the new value of Server.SteadySince after a report of the server's lag. It returns the zero time if
// the lag is above the limit. Otherwise it returns the previous value or, if that is zero, the time of the report. When
// reports stop, the caller must set SteadySince to zero itself.
func Steady(previous time.Time, lag, limit uint64, now time.Time) time.Time {
	switch {
	case lag > limit:
		return time.Time{}
	case previous.IsZero():
		return now
	default:
		return previous
	}
}
