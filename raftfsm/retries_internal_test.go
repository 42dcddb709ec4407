package raftfsm

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
)

// changing is a replica whose waitChange returns at once.
type changing struct{ replica }

func (changing) waitChange(context.Context, uint32) {}

// A request that needs a format which a server cannot read is not retried, because no new leader can help.
func TestRetries_OnlyWhatANewLeaderMayFix(t *testing.T) {
	r := retries{newMetrics(prometheus.NewRegistry()), make(chan struct{})}
	for code, want := range map[fault.Code]bool{
		fault.NotLeader: true, fault.Unavailable: true, fault.Indeterminate: true, fault.FormatBlocked: false,
		fault.Invalid: false, fault.ReadOnly: false,
	} {
		if got := r.again(t.Context(), changing{}, 0, fault.New(code, "test", "no")); got != want {
			t.Errorf("%s: %v", code, got)
		}
	}
}
