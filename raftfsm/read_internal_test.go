package raftfsm

import (
	"errors"
	"testing"

	"github.com/quorate/quorate/raftfsm/kv"
)

func TestUnreplaced_RepeatsReadOfReplacedMachine(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		replaced, want int // replaced: how many calls of read replace the machine
		err            error
	}{
		"never replaced":       {replaced: 0, want: 1},
		"replaced twice":       {replaced: 2, want: 3},
		"replaced, but failed": {replaced: 2, want: 1, err: failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			live, calls := &kv.Machine{}, 0
			err := unreplaced(func() *kv.Machine { return live }, func() error {
				if calls++; calls <= c.replaced {
					live = &kv.Machine{}
				}
				return c.err
			})
			if !errors.Is(err, c.err) || calls != c.want {
				t.Errorf("%d calls, %v; want %d, %v", calls, err, c.want, c.err)
			}
		})
	}
}
