package snapshot

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) { t.Helper(); testutil.Must(t, err) }

func wantCode(t testing.TB, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("got %v (code %q), want code %q", err, fault.CodeOf(err), code)
	}
}

// names returns the names in a directory.
func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func readManifest(dir string) (*Manifest, error) { return LoadManifest(raftlog.OSVolume{}, dir) }
