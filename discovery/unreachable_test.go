package discovery_test

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/discovery/records"
	"github.com/quorate/quorate/internal/fault"
)

// Gossip may know a node before that node belongs to a cluster. Such a node refuses every call at its peer port.
func TestPick_SkipsNodeThatCannotBeDialled(t *testing.T) {
	s := newSite(t, "n1")
	s.knows(t, map[string]string{"n2": "orders"})
	incarnation := discovery.Incarnation{Node: "n2", Boot: "b1"}
	s.Members([]discovery.Member{{Incarnation: incarnation, State: records.Alive}})
	if _, err := s.Pick(orders, nil); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(err.Error(), "n2 belongs to no cluster yet") {
		t.Errorf("Pick: %v", err)
	}
	condition := func() discovery.Condition {
		got, _ := s.Standing(&s.View().Instances(orders)[0])
		return got
	}
	if got := condition(); got != discovery.Unhealthy {
		t.Errorf("an instance that cannot be called is %s", got)
	}
	s.Members([]discovery.Member{{Incarnation: incarnation, Peer: "n2.d1", State: records.Alive}})
	if got := s.picks(t, "orders", 1); got != "n2" {
		t.Errorf("picked %s", got)
	}
}
