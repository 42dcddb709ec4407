package logadapt

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// limited returns a logger for raft, a function that returns what was logged since its last call, and the time that
// the logger uses.
func limited() (hclog.Logger, func() string, *time.Time) {
	var b bytes.Buffer
	l := Raft(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug})))
	now := time.Unix(0, 0)
	l.(*hcLogger).limiter.now = func() time.Time { return now }
	return l, func() string { defer b.Reset(); return b.String() }, &now
}

func TestRaft_UnansweredRequestsAreRateLimited(t *testing.T) {
	l, logged, now := limited()
	l = l.Named("raft").With("group", 1)
	lost := errors.New("connection refused")
	for _, line := range []func(peer string){
		func(peer string) { l.Warn("failed to contact", "server-id", peer, "time", time.Second) },
		func(peer string) { l.Error("failed to appendEntries to", "peer", peer, "error", lost) },
		func(peer string) {
			l.Error("failed to heartbeat to", "peer", peer, "backoff time", "1s", "error", lost)
		},
		func(peer string) { l.Error("failed to make requestVote RPC", "target", peer, "error", lost, "term", 3) },
		func(peer string) { l.Error("failed to install snapshot", "peer", peer, "id", "x", "error", lost) },
		func(peer string) { l.Warn("rejecting pre-vote request since we have a leader", "from", peer) },
	} {
		for i, want := range []struct {
			peer, level string
			later       time.Duration
		}{{"a", "INFO", 0}, {"a", "DEBUG", time.Second}, {"b", "INFO", 0}, {"a", "INFO", quietPeriod}, {"a", "DEBUG",
			0}} {
			*now = now.Add(want.later)
			if line(want.peer); !strings.Contains(logged(), "level="+want.level) {
				t.Errorf("line %d about %s is not at level %s", i, want.peer, want.level)
			}
		}
		*now = now.Add(quietPeriod)
	}
}

func TestRaft_JoinBySnapshotIsNoError(t *testing.T) {
	l, logged, _ := limited()
	l.Error("failed to get log", "index", 7, "error", errors.New("log not found"))
	l.Warn("skipping application of old log", "index", 7)
	l.Warn("failed to get previous log", "previous-index", 4, "last-index", 9, "error", errors.New("disk"))
	l.Warn("failed to get previous log", "previous-index", 4, "last-index", 0, "error", errors.New("log not found"))
	if text := logged(); strings.Count(text, "level=INFO") != 3 ||
		strings.Count(text, "level=DEBUG") != 1 {
		t.Error(text)
	}
}

func TestRaft_KeepsErrorsForOperators(t *testing.T) {
	l, logged, _ := limited()
	for _, msg := range []string{"failed to append to logs", "failed to persist vote", "failed to take snapshot",
		"failed to get log", "failed to install snapshot", "anything new"} {
		if l.Error(msg, "error", errors.New("x")); !strings.Contains(logged(), "level=ERROR") {
			t.Errorf("%q is not an error any more", msg)
		}
	}
	if l.Warn("heartbeat timeout reached, starting election", "last-leader-id", ""); !strings.Contains(logged(),
		"level=INFO") {
		t.Error("the first election after a start is a warning")
	}
	l, logged, _ = limited()
	for _, msg := range []string{"failed to contact quorum of nodes, stepping down",
		"heartbeat timeout reached, starting election"} {
		if l.Warn(msg, "last-leader-id", "b"); !strings.Contains(logged(), "level=WARN") {
			t.Errorf("%q is not a warning any more", msg)
		}
	}
	if l.Error("peer has newer term, stopping replication", "peer", "a"); !strings.Contains(logged(), "level=INFO") {
		t.Error("a change of leader is an error")
	}
}

func TestRaft_FailedElectionsAreRateLimited(t *testing.T) {
	l, logged, now := limited()
	for _, line := range []struct {
		level string
		log   func()
	}{
		{"WARN", func() { l.Warn("heartbeat timeout reached, starting election", "last-leader-id", "b") }},
		{"WARN", func() { l.Warn("Election timeout reached, restarting election") }},
		{"INFO", func() { l.Info("entering candidate state", "node", "a", "term", 7) }},
		{"INFO", func() { l.Info("pre-vote campaign failed, waiting for election timeout", "refused", 2) }},
	} {
		for i, want := range []struct {
			level string
			later time.Duration
		}{{line.level, 0}, {"DEBUG", time.Second}, {"DEBUG", time.Second}, {line.level, quietPeriod}} {
			*now = now.Add(want.later)
			if line.log(); !strings.Contains(logged(), "level="+want.level+" ") {
				t.Errorf("line %d is not at level %s", i, want.level)
			}
		}
	}
}

func TestRaft_BoundsRememberedPeers(t *testing.T) {
	l, _, _ := limited()
	for i := range 3 * maxQuiet {
		l.Error("failed to heartbeat to", "peer", i)
	}
	if n := len(l.(*hcLogger).limiter.last); n > maxQuiet {
		t.Errorf("%d peers are remembered", n)
	}
}
