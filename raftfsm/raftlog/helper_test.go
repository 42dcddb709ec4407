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
	wal.DefaultSegmentSize = 16 << 10 // many small segments, because raft-wal deletes only whole segments
	goleak.VerifyTestMain(m)
}

// large is a value of 2000 bytes. 40 entries with such values need several of raft-wal's segments in these tests.
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

// still reports whether nothing arrives from the channel for 300 ms.
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
