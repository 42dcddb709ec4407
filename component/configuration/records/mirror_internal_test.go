package records

import (
	"errors"
	"testing"
)

// TestMirror_SubscriptionAfterStopEnds lets a subscription join between the end of the mirror's start and stop.
// Without a check, nothing would end this subscription.
func TestMirror_SubscriptionAfterStopEnds(t *testing.T) {
	m := &mirror{cancel: func() {}, synced: make(chan struct{}), subs: map[*subscriber]bool{}, ready: true}
	close(m.synced)
	sub := &subscriber{}
	if !m.add(sub) {
		t.Fatal("the mirror takes no subscription")
	}
	closed := errors.New("closed")
	m.stop(closed)
	if err := m.await(t.Context(), sub); !errors.Is(err, closed) {
		t.Errorf("the subscription was started: %v", err)
	}
}
