package raftlog

import (
	"strings"
	"testing"
	"time"

	wal "github.com/hashicorp/raft-wal"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) {
	wal.DefaultSegmentSize = 16 << 10 // many small segments, because raft-wal deletes only whole ones
	goleak.VerifyTestMain(m)
}

// large makes the log of 40 entries longer than raft-wal's segments in these tests.
var large = strings.Repeat("v", 2000)

func must(t testing.TB, err error) { t.Helper(); testutil.Must(t, err) }

func wantCode(t testing.TB, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("got %v (code %q), want code %q", err, fault.CodeOf(err), code)
	}
}

func engines(t *testing.T, f func(t *testing.T, e Engine)) {
	for _, e := range []Engine{BoltDB, WAL} {
		t.Run(string(e), func(t *testing.T) { f(t, e) })
	}
}

// still reports whether something does not happen for a while.
func still(t *testing.T, happened <-chan struct{}) bool {
	t.Helper()
	timer := time.NewTimer(300 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-happened:
		return false
	case <-timer.C:
		return true
	}
}
