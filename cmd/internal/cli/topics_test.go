package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/cli"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

// ListTopics implements admin.Topics.
func (n *memoryNode) ListTopics(_ context.Context, pubsub, topic string) ([]schema.TopicStatus, error) {
	at := time.Unix(1700000000, 0).UTC()
	all := []schema.TopicStatus{
		{PubSub: "pubsub", Topic: "orders", Messages: 1200, Bytes: 34 << 10, MaxBytes: 1 << 30, RetentionMS: 86_400_000,
			Full: true, DeadTo: []string{"failed"}, Groups: []schema.TopicGroupStatus{
				{Group: "report", Lag: 1200, Capped: true, Oldest: &at, OldestAgeMS: 3_723_900},
				{Group: "shop", Subscribers: 2, Lag: 3, Retried: 1, Delayed: 2}},
			Parts: []schema.TopicPart{{Messages: 1000, Newest: 77}, {RaftGroup: 1, Messages: 200, Newest: 41}}},
		{PubSub: "pubsub", Topic: "failed", Messages: 1, Bytes: 300, DeadOf: []string{"orders", "a\nb"}},
	}
	for i := range all {
		if all[i].Topic == topic {
			return all[i : i+1], nil
		}
	}
	switch {
	case pubsub != "" && pubsub != "pubsub":
		return nil, fault.New(fault.NotFound, "test", "this node has no pubsub component "+pubsub)
	case topic != "":
		return nil, fault.New(fault.NotFound, "test", "pubsub component "+pubsub+" has no topic "+topic)
	}
	return all, nil
}

// PublishMessage implements admin.Topics.
func (n *memoryNode) PublishMessage(_ context.Context, r schema.TopicPublish) (schema.TopicPublished, error) {
	n.published.Store(&r)
	if r.PubSub != "pubsub" {
		return schema.TopicPublished{}, fault.New(fault.NotFound, "test", "this node has no pubsub component "+r.PubSub)
	}
	return schema.TopicPublished{PubSub: r.PubSub, Topic: r.Topic, Bytes: len(r.Data),
		ContentType: r.ContentType}, nil
}

func TestTopics_Output(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	const head = "PUBSUB  TOPIC   MESSAGES  SIZE            DEAD LETTERS OF  GROUP   SUBSCRIBERS  LAG    OLDEST\n"
	c.want(0, head+
		"pubsub  orders  1200      34.0 KiB, full  -                report  0            1200+  1h2m3s\n"+
		"pubsub  orders  1200      34.0 KiB, full  -                shop    2            3      -\n"+
		"pubsub  failed  1         300 B           orders,\"a\\nb\"    -       -            -      -\n", "",
		"topics", "list")
	c.want(0, "Topic            orders of pubsub\nMessages         1200\n"+
		"Size             34.0 KiB of at most 1.0 GiB; it is full and refuses messages\n"+
		"Retention        24h0m0s\nNewest offset    77 in Raft group 0, 41 in Raft group 1\n"+
		"Dead letters of  -\nDead letters in  failed\n\n"+
		"GROUP   SUBSCRIBERS  LAG    RETRIED  DELAYED  OLDEST\n"+
		"report  0            1200+  0        0        1h2m3s\n"+
		"shop    2            3      1        2        -\n", "", "topics", "show", "orders", "--node", "n2")
	var one schema.TopicStatus
	if err := json.Unmarshal([]byte(c.run("topics", "show", "failed", "--json").stdout), &one); err != nil ||
		one.Topic != "failed" || len(one.DeadOf) != 2 {
		t.Errorf("%+v, %v", one, err)
	}
	c.want(1, "", "pubsub component pubsub has no topic ordrs", "topics", "show", "ordrs")
	c.want(1, "", "this node has no pubsub component x", "topics", "show", "y", "--pubsub", "x")
	c.want(1, "", "this node has no pubsub component x", "topics", "list", "--pubsub", "x")
	c.want(2, "", "accepts 1 arg", "topics", "show")
	c.want(2, "", "did you mean list", "topics", "lst")
}

func TestPublish_SendsDataAndMetadata(t *testing.T) {
	var running atomic.Pointer[memoryNode]
	c := newConsole(t)
	c.open = func(ctx context.Context, config node.Config, log *slog.Logger) (cli.Node, error) {
		n, err := openMemoryNode(ctx, config, log)
		running.Store(n)
		return n, err
	}
	s := c.start()
	defer c.stop(s)
	file := filepath.Join(c.home, "order.json")
	if err := os.WriteFile(file, []byte(`{"id":"1","source":"s","type":"t","specversion":"1.0"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c.stdin = "from\nstdin\n"
	for _, one := range []struct {
		args []string
		data string
		want schema.TopicPublish
	}{
		{[]string{"--data", `{"a":1}`}, `{"a":1}`, schema.TopicPublish{ContentType: "application/json"}},
		{[]string{"--data", ""}, "", schema.TopicPublish{ContentType: "text/plain"}},
		{[]string{"--file", file, "--key", "k", "--metadata", "ttl=1m"},
			`{"id":"1","source":"s","type":"t","specversion":"1.0"}`,
			schema.TopicPublish{ContentType: "application/cloudevents+json",
				Metadata: map[string]string{"partitionKey": "k", "ttl": "1m"}}},
		{nil, "from\nstdin\n", schema.TopicPublish{ContentType: "text/plain"}},
		{[]string{"--file", "-", "--content-type", "text/csv"}, "from\nstdin\n",
			schema.TopicPublish{ContentType: "text/csv"}},
	} {
		c.want(0, "Published "+bytesText(len(one.data))+" of "+one.want.ContentType+" to topic orders of pubsub.\n", "",
			append([]string{"publish", "orders"}, one.args...)...)
		got := running.Load().published.Load()
		if string(got.Data) != one.data || got.ContentType != one.want.ContentType ||
			fmt.Sprint(got.Metadata) != fmt.Sprint(one.want.Metadata) {
			t.Errorf("%v: published %+v", one.args, got)
		}
	}
	c.want(0, "{\n  \"pubsub\": \"pubsub\",\n  \"topic\": \"orders\",\n  \"bytes\": 1,\n  \"contentType\": "+
		"\"application/json\"\n}\n", "",
		"publish", "orders", "--data", "1", "--json")
	c.want(0, "Published 1 byte of application/json to topic orders of pubsub.\n", "",
		"publish", "-p", "pubsub", "-t", "orders", "-d", "1")
	c.want(0, "Published 54 bytes of application/cloudevents+json to topic orders of pubsub.\n", "",
		"publish", "--topic", "orders", "--data-file", file)
	c.want(1, "", "this node has no pubsub component nope", "publish", "orders", "--pubsub", "nope", "--data", "1")
	c.want(2, "", "--key and --metadata partitionKey differ", "publish", "orders", "--data", "1", "--key", "a",
		"--metadata", "partitionKey=b")
	c.want(2, "", "the file of --file cannot be read", "publish", "orders", "--file", file+".no")
	c.want(1, "", "if any flags in the group [data file data-file] are set none of the others can be", "publish",
		"orders", "--data", "1", "--file", file)
	c.want(2, "", "--pubsub names the component (quorate publish orders --pubsub closed)",
		"publish", "closed", "orders", "--data", "1")
	c.want(2, "", "name one topic", "publish", "orders", "--topic", "orders", "--data", "1")
	c.want(2, "", "name one topic", "publish")
	c.want(1, "", "no quorate run of this user has the application shop", "publish", "orders", "--data", "1",
		"--publish-app-id", "shop")
	c.want(1, "", "if any flags in the group [publish-app-id data-dir] are set none of the others can be", "publish",
		"orders", "--data", "1", "-i", "shop", "--data-dir", c.home)
	running.Load().published.Store(nil)
	c.stdin = ""
	for _, args := range [][]string{{"publish", "orders"}, {"publish", "orders", "--file", "-"}} {
		c.want(2, "", "the standard input is empty, so nothing is published; write --data ''", args...)
	}
	if got := running.Load().published.Load(); got != nil {
		t.Errorf("published %+v", got)
	}
}

func bytesText(n int) string {
	if n == 1 {
		return "1 byte"
	}
	return fmt.Sprint(n, " bytes")
}

// topicNamed returns an error if there is no such topic.
func (n *memoryNode) topicNamed(ctx context.Context, pubsub, topic string) (schema.TopicStatus, error) {
	list, err := n.ListTopics(ctx, pubsub, topic)
	if err != nil {
		return schema.TopicStatus{}, err
	}
	return list[0], nil
}

// ReadMessages implements admin.Topics.
func (n *memoryNode) ReadMessages(ctx context.Context, r schema.TopicRead, take func(schema.TopicLine) error) error {
	if _, err := n.topicNamed(ctx, r.PubSub, r.Topic); err != nil {
		return err
	}
	at := time.Unix(1700000000, 0).UTC()
	list := []schema.TopicMessage{
		{Offset: 7, Time: at, Key: "k 1", ContentType: "application/cloudevents+json",
			Data: json.RawMessage(`{"id":"1","data":{"order":1,"of":"<a>"}}`)},
		{Offset: 8, Time: at, ContentType: "application/cloudevents+json",
			Data: json.RawMessage(`{"data":"two\nlines"}`)},
		{Offset: 9, Time: at, ContentType: "application/cloudevents+json",
			Data: json.RawMessage(`{"data_base64":"AA=="}`)},
		{Offset: 10, Time: at, Text: "raw\x1b[31m"},
		{RaftGroup: 1, Offset: 11, Time: at, Base64: []byte{0xff}},
	}
	for i := range list {
		if r.Offset == nil && !r.Oldest && r.Since == nil || r.Offset != nil && list[i].Offset < *r.Offset {
			continue
		}
		if err := take(schema.TopicLine{Message: &list[i]}); err != nil {
			return err
		}
	}
	if err := take(schema.TopicLine{CaughtUp: true}); err != nil || !r.Follow {
		return err
	}
	if err := take(schema.TopicLine{Message: &schema.TopicMessage{Offset: 12, Time: at, Text: "new"}}); err != nil {
		return err
	}
	return fault.New(fault.Unavailable, "test", "the node is stopping")
}

// ReplayTopic implements admin.Topics.
func (n *memoryNode) ReplayTopic(ctx context.Context, r schema.TopicReplay) (schema.TopicStatus, error) {
	t, err := n.topicNamed(ctx, r.PubSub, r.Topic)
	if err == nil && r.Group != "shop" {
		err = fault.New(fault.NotFound, "test", "topic "+r.Topic+" has no consumer group "+r.Group)
	}
	return t, err
}

// DeleteTopic implements admin.Topics.
func (n *memoryNode) DeleteTopic(ctx context.Context, r schema.TopicDelete,
	report func(schema.TopicProgress) error) error {
	if _, err := n.topicNamed(ctx, r.PubSub, r.Topic); err != nil {
		return err
	}
	if !r.Force && r.Group == "" {
		return &fault.Error{Code: fault.Conflict, Op: "test", Msg: "topic " + r.Topic + " is in use",
			Hint: "use --force"}
	}
	if err := report(schema.TopicProgress{Done: 512}); err != nil {
		return err
	}
	return report(schema.TopicProgress{Done: 600, Ended: true})
}

// RedriveTopic implements admin.Topics. It breaks off in the middle if the messages go to the topic orders.
func (n *memoryNode) RedriveTopic(ctx context.Context, r schema.TopicRedrive,
	report func(schema.TopicProgress) error) error {
	if _, err := n.topicNamed(ctx, r.PubSub, r.Topic); err != nil {
		return err
	}
	if err := report(schema.TopicProgress{Done: 2, To: map[string]uint64{"orders": 2}}); err != nil {
		return err
	}
	if r.To == "orders" {
		return fault.New(fault.Overloaded, "test", "topic_full: topic orders is full")
	}
	return report(schema.TopicProgress{Done: 3, Skipped: 4, To: map[string]uint64{"orders": 2, "bills": 1},
		Ended: true})
}

func TestTopics_Tail(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	const all = "7  2023-11-14T22:13:20Z  key=k 1  {\"order\":1,\"of\":\"<a>\"}\n" +
		"8  2023-11-14T22:13:20Z  \"two\\nlines\"\n9  2023-11-14T22:13:20Z  base64:AA==\n" +
		"10  2023-11-14T22:13:20Z  \"raw\\x1b[31m\"\n11  2023-11-14T22:13:20Z  base64:/w==\n"
	c.want(0, all, "", "topics", "tail", "orders", "--from", "oldest", "--once")
	c.want(0, all, "", "topics", "tail", "orders", "--from", "15m", "--once")
	c.want(0, all, "", "topics", "tail", "orders", "--from", "2023-11-14T22:13:20Z", "--once")
	c.want(0, "11  2023-11-14T22:13:20Z  base64:/w==\n", "", "topics", "tail", "orders", "--from", "11", "--once")
	c.want(0, "", "", "topics", "tail", "orders", "--once")
	c.want(0, "{\"raftGroup\":0,\"offset\":7,\"time\":\"2023-11-14T22:13:20Z\",\"key\":\"k 1\",\"contentType\":"+
		"\"application/cloudevents+json\",\"data\":{\"id\":\"1\",\"data\":{\"order\":1,\"of\":\"<a>\"}}}\n", "",
		"topics", "tail", "orders", "--from", "oldest", "--json", "--limit", "1")
	c.want(1, "12  2023-11-14T22:13:20Z  new\n", "0 messages shown; waiting for new ones (Ctrl-C ends)\n"+
		"quorate: the node is stopping", "topics", "tail", "orders")
	c.want(1, "", "pubsub component pubsub has no topic ordrs", "topics", "tail", "ordrs")
	c.want(2, "", "--from \"-1\" is no place in a topic (give oldest, an offset, a time such as", "topics", "tail",
		"orders", "--from", "-1")
	c.want(2, "", "--limit -1 is below 0", "topics", "tail", "orders", "--limit", "-1")
}

func TestTopics_ReplayRedriveDelete(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	c.want(0, "Group shop of topic orders has 3 messages to handle.\n", "", "topics", "replay", "orders", "shop",
		"--from", "oldest")
	c.want(1, "", "topic orders has no consumer group x", "topics", "replay", "orders", "x", "--from", "2h")
	c.want(2, "", "--from is missing", "topics", "replay", "orders", "shop")
	c.want(2, "", "--from \"soon\" is no place", "topics", "replay", "orders", "shop", "--from", "soon")

	c.want(0, "Moved 3 messages of topic failed: 1 to bills, 2 to orders.\n4 messages stay, because it is not known "+
		"where they come from; --to names a topic.\n", "", "topics", "redrive", "failed")
	c.want(1, "", "topic_full: topic orders is full", "topics", "redrive", "failed", "--to", "orders")
	c.want(1, "", "has no topic none", "topics", "redrive", "none")
	if out := c.run("topics", "redrive", "failed", "--json").stdout; !strings.Contains(out, `"skipped": 4`) {
		t.Error(out)
	}

	c.want(2, "", "Topic orders has 1200 messages and 2 consumer groups. All are deleted.\n"+
		"Type the name of the topic (orders) to continue: ", "topics", "delete",
		"orders")
	c.stdin = "order\n"
	c.want(1, "", "not confirmed; nothing was changed", "topics", "delete", "orders", "--force")
	c.stdin = "orders\n"
	c.want(0, "Deleted topic orders of pubsub (600 records).\n", "Type the name of", "topics", "delete", "orders",
		"--force")
	c.want(0, "Deleted group shop of topic orders of pubsub.\n", "", "topics", "delete", "orders", "--group", "shop",
		"--yes")
	c.want(0, "Deleted group shop of topic orders of pubsub.\n", "Consumer group shop has 3 messages that it has not "+
		"acknowledged. It is deleted.\nType the name of", "topics", "delete", "orders", "--group", "shop")
	c.want(1, "", "topic orders of pubsub has no consumer group \"none\"", "topics", "delete", "orders", "--group",
		"none")
	// A script with an unset variable must not delete the topic instead of a group, or move messages elsewhere.
	c.want(2, "", "--group is empty", "topics", "delete", "orders", "--group", "", "--force", "--yes")
	c.want(2, "", "--to is empty", "topics", "redrive", "failed", "--to", "")
	c.want(1, "", "topic orders is in use (use --force)", "topics", "delete", "orders", "--yes")
	c.want(1, "", "has no topic none", "topics", "delete", "none", "--yes")
}
