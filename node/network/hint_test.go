package network_test

import (
	"errors"
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/node/network"
)

func TestHintFor_NamesTheFirewallOnlyIfThereWasNoAnswer(t *testing.T) {
	unreached := fault.New(fault.Unavailable, "peer.dial", "server b cannot be reached")
	if got := network.HintFor(unreached); got != network.ReachHint {
		t.Errorf("a server that does not answer: %q", got)
	}
	refused := peer.Distrust(peer.ReasonUnformed, errors.New("server b belongs to no cluster yet"))
	if got := network.HintFor(fault.Wrap(refused, "peer.dial", "server b refused the connection")); got != "" {
		t.Errorf("a server that refused the connection: %q", got)
	}
}
