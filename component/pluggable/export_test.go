package pluggable

import (
	"context"
	"time"

	"github.com/quorate/quorate/component/state"
)

// OpenStateAt is OpenState with a clock.
func OpenStateAt(ctx context.Context, o Options, now func() time.Time) (state.Store, error) {
	return openState(ctx, o, now)
}

// MaxEvents is how many events of an input are in progress.
const MaxEvents = maxEvents
