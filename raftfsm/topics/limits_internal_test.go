package topics

import (
	"os"
	"strings"
	"testing"
)

func TestLimits_AreInTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../docs/components/pubsub.raft.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		limit, want int64
		text        string
	}{
		{int64(DefaultRetention.Hours()), 24, "| `retention` | `24h` |"},
		{DefaultMaxBytes, 1 << 30, "| `maxBytes` | `1Gi` |"},
		{maxConcurrency, 1000, "from 1 to 1000."},
		{maxKey, 1024, "keys and ids 1,024;"},
		{maxMessages, 10_000, "10,000 messages and 63 MiB in one request"},
		{maxPublish, 63 << 20, "10,000 messages and 63 MiB in one request"},
		{maxMemberBytes, 16 << 20, "while it has 16 MiB of messages that it has not settled"},
		{int64(sessionLife.Seconds()), 5, "does not call the leader for 5 s, other subscribers get its messages"},
	} {
		if c.limit != c.want || !strings.Contains(string(page), c.text) {
			t.Errorf("the limit is %d, the test expects %d and the text %q", c.limit, c.want, c.text)
		}
	}
}
