package records

import (
	"errors"
	"slices"
	"testing"

	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/state"
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

// A component is replaced while its watch has returned the deletion of an item. The subscription cannot deliver this
// any more, so the item must stay in its list. The reader of the subscription then learns of the deletion by
// comparison.
func TestMirror_StopKeepsUndeliveredDeletions(t *testing.T) {
	sub := &subscriber{queue: configuration.NewQueue(func() {})}
	m := &mirror{cancel: func() {}, subs: map[*subscriber]bool{sub: true}, ready: true,
		known: map[string]uint64{prefix + "k": 1}, applied: 1}
	closed := errors.New("closed")
	m.stop(closed)
	deleted := state.Change{Item: state.Item{Key: prefix + "k"}, Revision: 2, Deleted: true}
	if err := m.apply(&state.WatchPart{Changes: []state.Change{deleted}}); !errors.Is(err, closed) {
		t.Errorf("apply: %v", err)
	}
	if items, err := sub.queue.Next(t.Context()); !errors.Is(err, closed) {
		t.Errorf("Next: %v, %v", items, err)
	}
	if got := m.present(sub); !slices.Equal(got, []string{"k"}) {
		t.Errorf("present are %v", got)
	}
}
