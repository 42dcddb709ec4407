package remoteinvoke_test

import (
	"context"
	"testing"
	"time"
)

// After parallel calls, the caller may have open tunnels that it has never used. Close must end them at once.
func TestClose_EndsUnusedTunnelsAtOnce(t *testing.T) {
	a, b := pair(t, describe)
	unused, err := a.port.Tunnel(t.Context(), b.name)
	if err != nil {
		t.Fatal(err)
	}
	defer unused.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start := time.Now()
	if err := b.server.Close(ctx); err != nil {
		t.Errorf("no call was cut, and Close returned %v", err)
	}
	if took := time.Since(start); !testing.Short() && took > 4*time.Second { // net/http waits for over five
		t.Errorf("Close took %v", took)
	}
}
