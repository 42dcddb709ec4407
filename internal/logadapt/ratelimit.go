package logadapt

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// quietPeriod is the time after a log line of hashicorp/raft during which repetitions of this line are logged at level
// debug. A repetition has the same message and peer as the first line.
const quietPeriod = 10 * time.Minute

// maxQuiet is how many combinations of message and peer a limiter remembers.
const maxQuiet = 1024

// Raft returns a logger for hashicorp/raft. It is like the logger of HCLog, but lowers the level of some lines, so that
// only problems that need an operator are errors:
//
//   - Lines about unanswered requests and refused votes are logged at level info, because the peer may only be
//     stopping. Repetitions within ten minutes are logged at level debug.
//   - Lines that appear at every change of leader are logged at level info.
//   - Lines about the empty log of a new follower are logged at level debug.
//   - Lines that repeat while there is no quorum keep their level, but repetitions within ten minutes are logged at
//     level debug.
func Raft(l *slog.Logger) hclog.Logger {
	return &hcLogger{base: l, out: l, limiter: &limiter{now: time.Now, last: map[string]time.Time{}}}
}

// limiter chooses the levels of log lines. A logger and the loggers derived from it share one limiter.
type limiter struct {
	now func() time.Time

	mu   sync.Mutex // guards last
	last map[string]time.Time
}

// level returns the level for a line of raft.
func (c *limiter) level(level slog.Level, msg string, args []any) slog.Level {
	if c == nil {
		return level
	}
	switch msg {
	case "heartbeat timeout reached, starting election":
		if value(args, "last-leader-id") == "" { // no leader was lost: this server has just started
			level = slog.LevelInfo
		}
		return c.once(msg, "", level)
	case "Election timeout reached, restarting election",
		"entering candidate state", "pre-vote campaign failed, waiting for election timeout",
		"failed to contact quorum of nodes, stepping down":
		return c.once(msg, "", level) // without a quorum, these lines repeat for every election
	}
	if level < slog.LevelWarn {
		return level
	}
	switch msg {
	case "failed to get previous log": // this line is about a new follower, which has no log yet
		if value(args, "error") == "log not found" {
			return slog.LevelDebug
		}
		return slog.LevelInfo
	case "failed to contact", "failed to appendEntries to", "failed to heartbeat to", "failed to send snapshot to",
		"failed to make requestVote RPC",
		"rejecting vote request since node is not in configuration", "rejecting vote request since we have a leader",
		"rejecting vote request since node is not a voter", "rejecting pre-vote request since node is not in " +
			"configuration",
		"rejecting pre-vote request since we have a leader", "rejecting pre-vote request since node is not a voter":
		return c.once(msg, about(args), slog.LevelInfo)
	case "failed to get log": // this line is about a follower that is behind the start of the log, and gets a snapshot
		if value(args, "error") == "log not found" {
			return slog.LevelInfo
		}
	case "failed to install snapshot": // both ends log this line, and only the sender names a peer
		if peer := about(args); peer != "" {
			return c.once(msg, peer, slog.LevelInfo)
		}
	case "skipping application of old log": // the entry is in the snapshot that was installed
		return slog.LevelInfo
	case "peer has newer term, stopping replication", "no known peers, aborting election",
		"not part of stable configuration, aborting election",
		"appendEntries rejected, sending older logs", "previous log term mis-match",
		"rejecting vote request since our last term is greater", "rejecting vote request since our last index is " +
			"greater",
		"rejecting pre-vote request since our last term is greater", "rejecting pre-vote request since our last " +
			"index is greater",
		"new leader elected, stepping down":
		return slog.LevelInfo
	}
	return level
}

// once returns the level of a line that may repeat. For the first line with this message and peer, the result is the
// parameter first. For repetitions of this line within quietPeriod, it is slog.LevelDebug.
func (c *limiter) once(msg, peer string, first slog.Level) slog.Level {
	key, now := msg+"\x00"+peer, c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, seen := c.last[key]; seen && now.Sub(at) < quietPeriod {
		return slog.LevelDebug
	}
	if len(c.last) >= maxQuiet {
		clear(c.last)
	}
	c.last[key] = now
	return first
}

// value returns the argument of a line with the given key as text, or "" if there is none.
func value(args []any, key string) string {
	for i := 0; i+1 < len(args); i += 2 {
		if args[i] == key {
			return fmt.Sprint(args[i+1])
		}
	}
	return ""
}

// about returns the peer of a line: the first of its arguments that names one.
func about(args []any) string {
	for i := 0; i+1 < len(args); i += 2 {
		switch args[i] {
		case "peer", "target", "from", "candidate", "server-id":
			return fmt.Sprint(args[i+1])
		}
	}
	return ""
}
