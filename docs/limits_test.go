package docs_test

import (
	"strings"
	"testing"

	apipubsub "github.com/quorate/quorate/api/pubsub"
	"github.com/quorate/quorate/api/workflows"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/workflow/turn"
)

// The limits of the Raft groups are compared with the pages in raftfsm/workflows and raftfsm/topics.
func TestPages_HaveTheLimits(t *testing.T) {
	for _, c := range []struct {
		limit, want int
		page, text  string
	}{
		{workflows.MaxPublicID, 64, "docs/workflows.md", "names | 64 letters, digits, `-` and `_` |"},
		{workflows.MaxID, 1024, "docs/workflows.md", "| other ids, versions, names of workflows"},
		{workflows.MaxName, 1024, "docs/workflows.md", "activities and events | 1,024 bytes |"},
		{turn.MaxID, 1024, "docs/workflows.md", "activities and events | 1,024 bytes |"},
		{turn.MaxName, 1024, "docs/workflows.md", "activities and events | 1,024 bytes |"},
		{turn.MaxActions, 10_000, "docs/workflows.md", "| actions in an answer of a worker | 10,000 |"},
		{turn.MaxReasons, 8 << 20, "docs/workflows.md", "together | 8 MiB; otherwise they end without a reason |"},
		{turn.MaxCustom, 256 << 10, "docs/workflows.md", "| custom status of an instance | 256 KiB |"},
		{turn.MaxCarried, 50_000, "docs/workflows.md", "| events that a continue-as-new carries over | 50,000 |"},
		{turn.MaxTags, 100, "docs/workflows.md", "| tags of an instance | 100 |"},
		{workflows.MaxTags, 100, "docs/workflows.md", "| tags of an instance | 100 |"},
		{workflows.MaxStreams, 256, "docs/workflows.md", "| streams of work of an application on a node | 256 |"},
		{workflows.MaxHistory, 64 << 20, "docs/workflows.md", "| history in an answer of `GetInstanceHistory` | 64"},
		{pubsub.MaxTopic, 1024, "docs/components/pubsub.raft.md", "names of topics 1,024 bytes"},
		{pubsub.MaxGroup, 512, "docs/components/pubsub.raft.md", "of groups 512"},
		{apipubsub.MaxEntries, 10_000, "docs/components/pubsub.raft.md", "10,000 messages and 63 MiB in one request"},
	} {
		if c.limit != c.want || !strings.Contains(read(t, c.page), c.text) {
			t.Errorf("the limit is %d, the test expects %d and %q in %s", c.limit, c.want, c.text, c.page)
		}
	}
}
