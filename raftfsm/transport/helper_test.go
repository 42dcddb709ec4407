package transport

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func wantCode(t testing.TB, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("got %v (code %q), want code %q", err, fault.CodeOf(err), code)
	}
}
