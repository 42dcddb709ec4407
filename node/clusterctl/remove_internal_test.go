package clusterctl

import (
	"strings"
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
		{fault.Overloaded, 0, fault.Overloaded},
		{fault.Overloaded, 1, fault.Indeterminate},
		{fault.FormatBlocked, 1, fault.Indeterminate},
		{fault.Internal, 1, fault.Indeterminate},
		{fault.Indeterminate, 1, fault.Indeterminate},
		{fault.Conflict, 0, fault.Conflict},
		{fault.Conflict, 1, fault.Conflict}, // the group has answered
	} {
		got := unfinished(fault.New(c.code, opRemove, "test"), c.begun)
		if !fault.Is(got, c.want) {
			t.Errorf("%s after %d groups: %v, want %s", c.code, c.begun, got, c.want)
		}
		if begun := strings.Contains(got.Error(), "the removal has begun in "); begun != (c.begun > 0) {
			t.Errorf("%s after %d groups: the text is %q", c.code, c.begun, got)
		}
	}
}
