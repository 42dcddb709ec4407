package placement

import (
	"strings"
	"time"
)

// State is what gossip says about a node.
type State uint8

// The states of a node.
const (
	Alive  State = iota + 1 // it answers
	Left                    // it said good-bye (a graceful stop) and is expected back
	Failed                  // it stopped answering
)

// Server is one entry of the group's Raft configuration, as the leader sees it.
type Server struct {
	ID          string    // server id: the node id, a dot, and the random id of the data directory
	Voter       bool      // votes; otherwise it only replicates
	LagKnown    bool      // Lag is a recent answer of the server itself
	Lag         uint64    // log entries it is behind the leader
	SteadySince time.Time // since when Lag has been within Limits.MaxLag without a break (see Steady); zero = it is not
}

// Member is one node of the cluster. There is at most one per node id: the newest life of it.
type Member struct {
	Node     string    // node id
	Server   string    // server id; empty for a sidecar, which holds no data
	State    State     // a State outside the constants counts as Failed
	Since    time.Time // when it entered State
	SlowDisk bool      // leadership had better not go there
}

// Limits are the settings of the policy. The zero value of a field takes its default.
type Limits struct {
	MaxLag uint64        // entries a replica may be behind and still become a voter; 256
	Stable time.Duration // how long it must have kept within MaxLag; 5s
	Settle time.Duration // how long a voter must be gone before its vote moves, and a leader sit before it is moved; 1m
	Forget time.Duration // how long a failed replica stays configured; 24h, negative = for ever
}

// WithDefaults fills what is not set.
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

// Input is everything a decision about one group rests on. It is the view of the group's
// leader; no function changes it, and the order within its lists has no influence.
type Input struct {
	Group       uint32
	Voters      int       // wanted number of voters; below 1 counts as 1
	Leader      string    // server id of the leader; empty = there is none
	LeaderSince time.Time // since when it leads; zero = for long
	Servers     []Server  // the group's configuration
	Members     []Member  // every node gossip has seen, sidecars too
	Held        bool      // an operator chose the leader: Leaders leaves the group where it is
	Removed     []string  // server ids an operator removed; they never come back
	Now         time.Time
	Watching    time.Time // when this leader began to watch: a server that no member speaks for counts as failed since then; zero = just now
	Limits      Limits
}

// NodeOf returns the node id within a server id: what stands before the last dot.
func NodeOf(server string) string {
	if i := strings.LastIndexByte(server, '.'); i >= 0 {
		return server[:i]
	}
	return server
}

// Steady keeps Server.SteadySince up to date: given its last value and a new answer about
// the lag, it returns the next. Call it for every answer, and forget the value (zero) when
// answers stop coming.
func Steady(since time.Time, lag, limit uint64, now time.Time) time.Time {
	switch {
	case lag > limit:
		return time.Time{}
	case since.IsZero():
		return now
	default:
		return since
	}
}
