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

// MaxEvents is the maximum number of events of an input that are in progress.
const MaxEvents = maxEvents
