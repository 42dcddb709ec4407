package node

import (
	"testing"

	"github.com/quorate/quorate/internal/fault"
)

// A topic without its component must not select the first topic of any component.
func TestTopics_TopicNeedsItsComponent(t *testing.T) {
	list, err := topicService{}.ListTopics(t.Context(), "", "orders")
	if !fault.Is(err, fault.Invalid) || len(list) != 0 {
		t.Errorf("listed %+v, %v", list, err)
	}
}
