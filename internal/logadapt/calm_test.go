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

// calmed returns raft's logger, what it has logged since the last call, and its clock.
func calmed() (hclog.Logger, func() string, *time.Time) {
	var b bytes.Buffer
	l := Raft(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug})))
	now := time.Unix(0, 0)
	l.(*hcLogger).calm.now = func() time.Time { return now }
	return l, func() string { defer b.Reset(); return b.String() }, &now
}

func TestAPeerThatDoesNotAnswerIsNoErrorAndOneLineAMinute(t *testing.T) {
	l, logged, now := calmed()
	l = l.Named("raft").With("group", 1)
	lost := errors.New("connection refused")
	for _, line := range []func(peer string){
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
		}{{"a", "INFO", 0}, {"a", "DEBUG", time.Second}, {"b", "INFO", 0}, {"a", "INFO", calmPeriod}, {"a", "DEBUG", 0}} {
			*now = now.Add(want.later)
			if line(want.peer); !strings.Contains(logged(), "level="+want.level) {
				t.Errorf("line %d about %s is not at level %s", i, want.peer, want.level)
			}
		}
		*now = now.Add(calmPeriod)
	}
}

func TestWhatNeedsAnOperatorStaysAnError(t *testing.T) {
	l, logged, _ := calmed()
	for _, msg := range []string{"failed to append to logs", "failed to persist vote", "failed to take snapshot", "failed to get log", "failed to install snapshot", "anything new"} {
		if l.Error(msg, "error", errors.New("x")); !strings.Contains(logged(), "level=ERROR") {
			t.Errorf("%q is not an error any more", msg)
		}
	}
	for _, msg := range []string{"failed to contact quorum of nodes, stepping down", "heartbeat timeout reached, starting election"} {
		if l.Warn(msg); !strings.Contains(logged(), "level=WARN") {
			t.Errorf("%q is not a warning any more", msg)
		}
	}
	if l.Error("peer has newer term, stopping replication", "peer", "a"); !strings.Contains(logged(), "level=INFO") {
		t.Error("a change of leader is an error")
	}
}

func TestTheMemoryOfPeersIsBounded(t *testing.T) {
	l, _, _ := calmed()
	for i := range 3 * maxCalm {
		l.Error("failed to heartbeat to", "peer", i)
	}
	if n := len(l.(*hcLogger).calm.last); n > maxCalm {
		t.Errorf("%d peers are remembered", n)
	}
}
