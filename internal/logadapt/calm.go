package logadapt

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// calmPeriod is the time in which one line about one peer is enough; the others go to debug.
const calmPeriod = time.Minute

// maxCalm bounds the peers that are remembered.
const maxCalm = 1024

// Raft is HCLog for hashicorp/raft. It keeps the level error for what an operator has to
// act on. raft reports every request that a peer did not answer as an error, though the
// peer may just be stopping or not there yet; gossip says so once, and the loss of a quorum
// has lines of its own. Such lines become info, one a minute for each peer and kind, and
// debug between. So do votes refused and logs compared, which happen at every change of
// leader. All other lines keep their level.
func Raft(l *slog.Logger) hclog.Logger {
	return &hcLogger{base: l, out: l, calm: &calm{now: time.Now, last: map[string]time.Time{}}}
}

// calm decides about levels. Shared by a logger and those made of it.
type calm struct {
	now func() time.Time

	mu   sync.Mutex // guards last
	last map[string]time.Time
}

// level is the level at which a line of raft is logged.
func (c *calm) level(level slog.Level, msg string, args []any) slog.Level {
	if c == nil || level < slog.LevelWarn {
		return level
	}
	switch msg {
	case "failed to appendEntries to", "failed to heartbeat to", "failed to send snapshot to", "failed to make requestVote RPC",
		"rejecting vote request since node is not in configuration", "rejecting vote request since we have a leader",
		"rejecting vote request since node is not a voter", "rejecting pre-vote request since node is not in configuration",
		"rejecting pre-vote request since we have a leader", "rejecting pre-vote request since node is not a voter":
		return c.once(msg, about(args))
	case "failed to install snapshot": // both ends say so: the sender names a peer
		if peer := about(args); peer != "" {
			return c.once(msg, peer)
		}
	case "peer has newer term, stopping replication", "no known peers, aborting election", "not part of stable configuration, aborting election",
		"appendEntries rejected, sending older logs", "failed to get previous log", "previous log term mis-match",
		"rejecting vote request since our last term is greater", "rejecting vote request since our last index is greater",
		"rejecting pre-vote request since our last term is greater", "rejecting pre-vote request since our last index is greater",
		"new leader elected, stepping down":
		return slog.LevelInfo
	}
	return level
}

// once is info for the first line of a kind about a peer in calmPeriod, and debug for the rest.
func (c *calm) once(msg, peer string) slog.Level {
	key, now := msg+"\x00"+peer, c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, seen := c.last[key]; seen && now.Sub(at) < calmPeriod {
		return slog.LevelDebug
	}
	if len(c.last) >= maxCalm {
		clear(c.last)
	}
	c.last[key] = now
	return slog.LevelInfo
}

// about is whom a line is about: the first of its arguments that names a peer.
func about(args []any) string {
	for i := 0; i+1 < len(args); i += 2 {
		switch args[i] {
		case "peer", "target", "from", "candidate":
			return fmt.Sprint(args[i+1])
		}
	}
	return ""
}
