package clusterctl

import (
	"testing"

	"github.com/quorate/quorate/internal/fault"
)

func TestUnfinished_RemovalThatHasBegunIsIndeterminate(t *testing.T) {
	for _, c := range []struct {
		code  fault.Code
		begun int
		want  fault.Code
	}{
		{fault.Unavailable, 0, fault.Unavailable},
		{fault.Unavailable, 1, fault.Indeterminate},
		{fault.NotLeader, 2, fault.Indeterminate},
		{fault.Conflict, 1, fault.Conflict}, // the group has answered
	} {
		if got := unfinished(fault.New(c.code, opRemove, "test"), c.begun); !fault.Is(got, c.want) {
			t.Errorf("%s after %d groups: %v, want %s", c.code, c.begun, got, c.want)
		}
	}
}
