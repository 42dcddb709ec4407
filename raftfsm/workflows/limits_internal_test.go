package workflows

import (
	"os"
	"strings"
	"testing"
)

func TestLimits_AreInTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../docs/workflows.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		limit, want int
		text        string
	}{
		{maxEvent, 16 << 20, "| input of an instance, data of an event, result of an activity | 16 MiB,"},
		{maxInbox, 100_000, "| events of clients that an instance has not handled | 100,000 and about 32 MiB;"},
		{maxInboxBytes, 32 << 20, "| events of clients that an instance has not handled | 100,000 and about 32 MiB;"},
		{maxHistory, 48 << 20, "has started or has continued as new | 48 MiB; then the instance stalls |"},
		{maxTurnEvents, 10_000, "| new events of one turn | 10,000 and 16 MiB;"},
		{maxTurnBytes, 16 << 20, "| new events of one turn | 10,000 and 16 MiB;"},
		{maxTurn, 64 << 20, "| history and new events of one turn, together | 64 MiB; then the instance stalls |"},
		{maxName, 1024, "| other ids, versions, names of workflows, activities and events | 1,024 bytes |"},
	} {
		if c.limit != c.want || !strings.Contains(string(page), c.text) {
			t.Errorf("the limit is %d, the test expects %d and the text %q", c.limit, c.want, c.text)
		}
	}
	if !strings.Contains(tooLong, "48 MiB") || !strings.Contains(string(page), "the history says `more than 48 MiB`") {
		t.Errorf("the reason %q is not the one of the page", tooLong)
	}
}
