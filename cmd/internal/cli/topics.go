package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
)

// defaultPubSub is the component that every node has.
const defaultPubSub = "pubsub"

func (m *Main) topicsCommand() *cobra.Command {
	c := &cobra.Command{Use: "topics", Short: "Show topics, and steer them", Args: cobra.ArbitraryArgs,
		Long: "Show the topics of components of type pubsub.raft, their consumer groups and messages; deliver\n" +
			"messages again, move dead letters back, and delete topics.", RunE: command.Group}
	c.AddCommand(m.topicsListCommand(), m.topicsShowCommand(), m.topicsTailCommand(), m.topicsReplayCommand(),
		m.topicsRedriveCommand(), m.topicsDeleteCommand())
	return c
}

// bindPubSub adds the flag that names a component.
func bindPubSub(c *cobra.Command, name *string) {
	c.Flags().StringVarP(name, "pubsub", "p", defaultPubSub, "`name` of the pubsub component")
}

func (m *Main) topicsListCommand() *cobra.Command {
	set, out := settings.New(), command.Output{}
	pubsub, node := "", ""
	c := &cobra.Command{Use: "list [flags]", Short: "Show topics and their consumer groups", Args: cobra.NoArgs,
		Long: "Show the topics of all components of type pubsub.raft, with a line for each consumer group: messages\n" +
			"that it has not acknowledged (lag), and for how long the oldest one has waited. A delayed message does\n" +
			"not wait before its time.",
		Example: "  quorate topics list --pubsub pubsub"}
	c.RunE = func(c *cobra.Command, _ []string) error {
		return m.AskAdmin(c, set, node, out.JSON(), func(ctx context.Context, a *command.AdminClient,
			asJSON bool) error {
			var list []schema.TopicStatus
			if err := a.Get(ctx, adminapi.TopicPath(pubsub, ""), &list); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, list)
			}
			return command.Table(m.Stdout, topicRows(list))
		})
	}
	c.Flags().StringVarP(&pubsub, "pubsub", "p", "", "only the topics of the component with this `name`")
	command.BindAdmin(c, set, &out)
	command.BindNode(c, &node)
	return c
}

func topicRows(list []schema.TopicStatus) [][]string {
	rows := [][]string{{"PUBSUB", "TOPIC", "MESSAGES", "SIZE", "DEAD LETTERS OF", "GROUP", "SUBSCRIBERS", "LAG",
		"OLDEST"}}
	for i := range list {
		t := &list[i]
		size := command.BytesText(int64(t.Bytes)) //nolint:gosec // fits
		if t.Full {
			size += ", full"
		}
		head := []string{t.PubSub, command.Printable(t.Topic), strconv.FormatUint(t.Messages, 10), size,
			command.Dash(topicNames(t.DeadOf))}
		for j := range t.Groups {
			g := &t.Groups[j]
			rows = append(rows, append(head[:len(head):len(head)], command.Printable(g.Group),
				strconv.FormatUint(g.Subscribers, 10), lagText(g), oldestText(g)))
		}
		if len(t.Groups) == 0 {
			rows = append(rows, append(head, "-", "-", "-", "-"))
		}
	}
	return rows
}

func topicNames(names []string) string {
	shown := make([]string, len(names))
	for i, name := range names {
		shown[i] = command.Printable(name)
	}
	return strings.Join(shown, ",")
}

// lagText returns the lag of a group. A "+" means that the lag may be higher.
func lagText(g *schema.TopicGroupStatus) string {
	text := strconv.FormatUint(g.Lag, 10)
	if g.Capped {
		text += "+"
	}
	return text
}

// oldestText returns for how long the oldest message of a group has waited.
func oldestText(g *schema.TopicGroupStatus) string {
	if g.Oldest == nil {
		return "-"
	}
	return (time.Duration(g.OldestAgeMS) * time.Millisecond).Truncate(time.Second).String()
}

func (m *Main) topicsShowCommand() *cobra.Command {
	set, out := settings.New(), command.Output{}
	pubsub, node := "", ""
	c := &cobra.Command{Use: "show topic [flags]", Short: "Show one topic and its consumer groups",
		Args: cobra.ExactArgs(1), Example: "  quorate topics show orders"}
	c.RunE = func(c *cobra.Command, args []string) error {
		return m.AskAdmin(c, set, node, out.JSON(), func(ctx context.Context, a *command.AdminClient,
			asJSON bool) error {
			t, err := askTopic(ctx, a, pubsub, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, t)
			}
			return m.printTopic(&t)
		})
	}
	bindPubSub(c, &pubsub)
	command.BindAdmin(c, set, &out)
	command.BindNode(c, &node)
	return c
}

// askTopic returns the status of one topic. If the component or the topic does not exist, the error says which of them.
func askTopic(ctx context.Context, a *command.AdminClient, pubsub, topic string) (t schema.TopicStatus, err error) {
	var list []schema.TopicStatus
	if err := a.Get(ctx, adminapi.TopicPath(pubsub, topic), &list); err != nil {
		return t, err
	}
	if len(list) != 1 {
		return t, fmt.Errorf("the node has answered with %d topics instead of one", len(list))
	}
	return list[0], nil
}

func (m *Main) printTopic(t *schema.TopicStatus) error {
	size := command.BytesText(int64(t.Bytes)) + " of at most " + command.BytesText(t.MaxBytes) //nolint:gosec // fits
	if t.Full {
		size += "; it is full and refuses messages"
	}
	var newest []string
	for _, p := range t.Parts {
		at := strconv.FormatUint(p.Newest, 10)
		if len(t.Parts) > 1 {
			at += " in Raft group " + strconv.FormatUint(uint64(p.RaftGroup), 10)
		}
		newest = append(newest, at)
	}
	rows := [][]string{{"Topic", command.Printable(t.Topic) + " of " + t.PubSub},
		{"Messages", strconv.FormatUint(t.Messages, 10)}, {"Size", size},
		{"Retention", (time.Duration(t.RetentionMS) * time.Millisecond).String()},
		{"Newest offset", command.Dash(strings.Join(newest, ", "))},
		{"Dead letters of", command.Dash(topicNames(t.DeadOf))},
		{"Dead letters in", command.Dash(topicNames(t.DeadTo))}}
	if err := command.Table(m.Stdout, rows); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(m.Stdout); err != nil {
		return err
	}
	rows = [][]string{{"GROUP", "SUBSCRIBERS", "LAG", "RETRIED", "DELAYED", "OLDEST"}}
	for i := range t.Groups {
		g := &t.Groups[i]
		rows = append(rows, []string{command.Printable(g.Group), strconv.FormatUint(g.Subscribers, 10), lagText(g),
			strconv.FormatUint(g.Retried, 10), strconv.FormatUint(g.Delayed, 10), oldestText(g)})
	}
	return command.Table(m.Stdout, rows)
}
