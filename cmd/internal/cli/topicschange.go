package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
)

// fromHelp explains the flag --from.
const fromHelp = "an offset, a time such as 2026-01-02T15:04:05Z, or how long ago, such as 15m"

// place is a place in a topic. Only one of its fields is set.
type place struct {
	offset *uint64
	since  *time.Time
	oldest bool
}

// parsePlace parses the value of --from.
func parsePlace(text string, now time.Time) (p place, err error) {
	if text == "oldest" {
		return place{oldest: true}, nil
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return place{offset: &n}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		ago, bad := time.ParseDuration(text)
		if bad != nil || ago < 0 {
			return p, command.Usagef("--from %q is no place in a topic (give oldest, %s)", text, fromHelp)
		}
		at = now.Add(-ago)
	}
	return place{since: &at}, nil
}

// topicLines sends a request and calls take with each line of the answer.
func topicLines(ctx context.Context, a *command.AdminClient, method, path string, body any,
	take func(*schema.TopicLine) error) error {
	return command.Lines(ctx, a, method, path, body, func(l *schema.TopicLine) json.RawMessage { return l.Error }, take)
}

// topicAction gives c an action that calls run for one topic. The context of run is that of the command, without an
// additional time limit.
func (m *Main) topicAction(c *cobra.Command, run func(ctx context.Context, a *command.AdminClient, pubsub string,
	args []string, asJSON bool) error) *cobra.Command {
	set, out, pubsub := settings.New(), command.Output{}, ""
	c.RunE = func(c *cobra.Command, args []string) error {
		dir, err := m.AdminDir(c, set)
		if err != nil {
			return err
		}
		return run(c.Context(), &command.AdminClient{DataDir: dir}, pubsub, args, out.JSON())
	}
	bindPubSub(c, &pubsub)
	command.BindAdmin(c, set, &out)
	return c
}

func (m *Main) topicsTailCommand() *cobra.Command {
	from, limit, once := "", 0, false
	c := m.topicAction(&cobra.Command{Use: "tail topic [flags]", Short: "Show messages of a topic as they come",
		Args: cobra.ExactArgs(1),
		Long: "Show the messages of a topic that are published from now on, or from another place on. This changes\n" +
			"nothing for consumer groups. End the command with Ctrl-C. The node logs that messages were read.\n" +
			"A line has the offset, the time of the publish, the key if there is one, and the data; --json has all.",
		Example: "  quorate topics tail orders\n  quorate topics tail failed-orders --from oldest --once\n" +
			"  quorate topics tail orders --from 15m --json",
	}, func(ctx context.Context, a *command.AdminClient, pubsub string, args []string, asJSON bool) error {
		r := schema.TopicRead{PubSub: pubsub, Topic: args[0], Follow: !once}
		if from != "" {
			p, err := parsePlace(from, time.Now())
			if err != nil {
				return err
			}
			r.Offset, r.Since, r.Oldest = p.offset, p.since, p.oldest
		}
		if limit < 0 {
			return command.Usagef("--limit %d is below 0", limit)
		}
		shown := 0
		err := topicLines(ctx, a, http.MethodGet, adminapi.TopicMessagesPath(&r), nil, func(l *schema.TopicLine) error {
			if l.CaughtUp && !once {
				_, err := fmt.Fprintf(m.Stderr, "%s shown; waiting for new ones (Ctrl-C ends)\n",
					command.Count(shown, "message"))
				return err
			}
			if l.Message == nil {
				return nil
			}
			if err := m.printMessage(l.Message, asJSON); err != nil {
				return err
			}
			if shown++; limit > 0 && shown >= limit {
				return command.ErrEnough
			}
			return nil
		})
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
	f := c.Flags()
	f.StringVar(&from, "from", "", "`place` to begin at: oldest, "+fromHelp+" (default now)")
	f.IntVarP(&limit, "limit", "n", 0, "end after so many messages; 0 = no limit")
	f.BoolVar(&once, "once", false, "end after the newest message, instead of waiting for more")
	return c
}

// printMessage prints a message on one line.
func (m *Main) printMessage(t *schema.TopicMessage, asJSON bool) error {
	if asJSON {
		return command.WriteJSONLine(m.Stdout, t)
	}
	head := strconv.FormatUint(t.Offset, 10) + "  " + t.Time.Format(time.RFC3339)
	if t.Key != "" {
		head += "  key=" + command.Printable(t.Key)
	}
	_, err := fmt.Fprintln(m.Stdout, head+"  "+dataText(t))
	return err
}

// dataText returns the data of a message on one line. If the message is a CloudEvent, dataText returns only the data in
// the event.
func dataText(t *schema.TopicMessage) string {
	switch {
	case t.Base64 != nil:
		return "base64:" + base64.StdEncoding.EncodeToString(t.Base64)
	case t.Data == nil:
		return command.Printable(t.Text)
	}
	data := t.Data
	var event map[string]json.RawMessage
	if strings.HasPrefix(t.ContentType, "application/cloudevents+json") && json.Unmarshal(data, &event) == nil {
		var text string
		switch {
		case json.Unmarshal(event["data_base64"], &text) == nil:
			return "base64:" + command.Printable(text)
		case json.Unmarshal(event["data"], &text) == nil:
			return command.Printable(text)
		case event["data"] != nil:
			data = event["data"]
		}
	}
	var line bytes.Buffer
	if err := json.Compact(&line, data); err != nil {
		return command.Printable(string(data))
	}
	return command.Printable(line.String())
}

func (m *Main) topicsReplayCommand() *cobra.Command {
	from := ""
	c := m.topicAction(&cobra.Command{Use: "replay topic group --from place [flags]",
		Short: "Deliver messages to a consumer group again", Args: cobra.ExactArgs(2),
		Long: "Deliver to a consumer group again what was published since a place. Other groups do not notice.\n" +
			"Messages that retention has removed do not come again. Messages before that place which the group has\n" +
			"not acknowledged still come. With several partitions, an offset counts in each Raft group; use a time.",
		Example: "  quorate topics replay orders shop --from 2h\n  quorate topics replay orders shop --from 1042",
	}, func(ctx context.Context, a *command.AdminClient, pubsub string, args []string, asJSON bool) error {
		if from == "" {
			return command.Usagef("--from is missing (give oldest, %s)", fromHelp)
		}
		p, err := parsePlace(from, time.Now())
		if err != nil {
			return err
		}
		if p.oldest {
			p.offset = new(uint64(1))
		}
		var t schema.TopicStatus
		if err := a.Post(ctx, adminapi.TopicReplayPath, schema.TopicReplay{PubSub: pubsub, Topic: args[0],
			Group: args[1], Offset: p.offset, Since: p.since}, &t); err != nil {
			return err
		}
		if asJSON {
			return command.WriteJSON(m.Stdout, t)
		}
		for i := range t.Groups {
			if g := &t.Groups[i]; g.Group == args[1] {
				_, err = fmt.Fprintf(m.Stdout, "Group %s of topic %s has %s messages to handle.\n",
					command.Printable(g.Group), command.Printable(t.Topic), lagText(g))
			}
		}
		return err
	})
	c.Flags().StringVar(&from, "from", "", "`place` to begin at: oldest, "+fromHelp)
	return c
}

// operation runs an operation on a topic, and shows its progress on a terminal. It returns fault.Indeterminate if the
// operation did not finish but may have changed something.
func (m *Main) operation(ctx context.Context, a *command.AdminClient, path string, body any,
	verb string) (sum schema.TopicProgress, err error) {
	live, drawn := command.IsTerminal(m.Stderr), false
	err = topicLines(ctx, a, http.MethodPost, path, body, func(l *schema.TopicLine) error {
		if l.Progress == nil {
			return nil
		}
		if sum = *l.Progress; live && !sum.Ended {
			drawn = true
			_, err := fmt.Fprintf(m.Stderr, "\r%d %s \033[K", sum.Done, verb)
			return err
		}
		return nil
	})
	if drawn {
		_, _ = fmt.Fprint(m.Stderr, "\r\033[K")
	}
	switch {
	case err != nil && sum.Done > 0 && !sum.Ended && !fault.Is(err, fault.Indeterminate):
		err = &fault.Error{Code: fault.Indeterminate, Op: "cli.topics", Err: err, Msg: "the operation has failed; " +
			strconv.FormatUint(sum.Done, 10) + " " + verb + "; the same command continues it"}
	case err == nil && !sum.Ended:
		err = &fault.Error{Code: fault.Indeterminate, Op: "cli.topics", Msg: "the node has stopped before the end; " +
			strconv.FormatUint(sum.Done, 10) + " " + verb, Hint: "run the command again: it continues"}
	}
	return sum, err
}

func (m *Main) topicsDeleteCommand() *cobra.Command {
	yes, r := false, schema.TopicDelete{}
	var c *cobra.Command
	c = m.topicAction(&cobra.Command{Use: "delete topic [flags]", Short: "Delete a topic or a consumer group",
		Args: cobra.ExactArgs(1),
		Long: "Delete a topic with its messages and consumer groups, or with --group only that group. You confirm\n" +
			"by typing the name of the topic. It is refused while there are subscribers. With --force, they go on\n" +
			"with an empty topic. The next publish creates the topic again.",
		Example: "  quorate topics delete old-orders\n  quorate topics delete orders --group former-app --yes",
	}, func(ctx context.Context, a *command.AdminClient, pubsub string, args []string, asJSON bool) error {
		if err := command.RefuseEmpty(c, "group"); err != nil {
			return err
		}
		r.PubSub, r.Topic = pubsub, args[0]
		known, cancel := context.WithTimeout(ctx, command.AdminTime)
		t, err := askTopic(known, a, pubsub, args[0])
		cancel()
		if err != nil {
			return err
		}
		if !yes {
			text := fmt.Sprintf("Topic %s has %d messages and %s. All are deleted.\n", command.Printable(t.Topic),
				t.Messages, command.Count(len(t.Groups), "consumer group"))
			if r.Group != "" {
				at := slices.IndexFunc(t.Groups, func(g schema.TopicGroupStatus) bool { return g.Group == r.Group })
				if at < 0 {
					return &fault.Error{Code: fault.NotFound, Op: "cli.topics",
						Msg:  fmt.Sprintf("topic %s of %s has no consumer group %q", t.Topic, pubsub, r.Group),
						Hint: "topics show lists them"}
				}
				text = fmt.Sprintf("Consumer group %s has %d messages that it has not acknowledged. It is deleted.\n",
					command.Printable(r.Group), t.Groups[at].Lag)
			}
			if _, err := io.WriteString(m.Stderr, text); err != nil {
				return err
			}
			if err := m.Confirm(args[0], "the name of the topic"); err != nil {
				return err
			}
		}
		sum, err := m.operation(ctx, a, adminapi.TopicDeletePath, r, "records deleted")
		switch {
		case err != nil:
			return err
		case asJSON:
			return command.WriteJSON(m.Stdout, sum)
		case r.Group != "":
			_, err = fmt.Fprintf(m.Stdout, "Deleted group %s of topic %s of %s.\n", command.Printable(r.Group),
				command.Printable(r.Topic), pubsub)
		default:
			_, err = fmt.Fprintf(m.Stdout, "Deleted topic %s of %s (%d records).\n", command.Printable(r.Topic), pubsub,
				sum.Done)
		}
		return err
	})
	f := c.Flags()
	f.StringVar(&r.Group, "group", "", "delete only this consumer `group`")
	f.BoolVar(&r.Force, "force", false, "also if there are subscribers")
	f.BoolVar(&yes, "yes", false, "do not ask for a confirmation")
	return c
}

func (m *Main) topicsRedriveCommand() *cobra.Command {
	to := ""
	var c *cobra.Command
	c = m.topicAction(&cobra.Command{Use: "redrive topic [flags]", Short: "Move dead letters back to their topics",
		Args: cobra.ExactArgs(1),
		Long: "Move the messages of a dead-letter topic back to the topics that they come from, where every\n" +
			"consumer group gets them again. A message is moved in one step, so none is lost or moved twice,\n" +
			"and you can repeat the command. Messages that become dead letters again in the meantime stay.\n" +
			"If dead letters of several topics are there, the CloudEvent tells which topic it is; others stay\n" +
			"until you name it.",
		Example: "  quorate topics redrive failed-orders\n  quorate topics redrive failed --to orders",
	}, func(ctx context.Context, a *command.AdminClient, pubsub string, args []string, asJSON bool) error {
		if err := command.RefuseEmpty(c, "to"); err != nil {
			return err
		}
		sum, err := m.operation(ctx, a, adminapi.TopicRedrivePath,
			schema.TopicRedrive{PubSub: pubsub, Topic: args[0], To: to}, "messages moved")
		if err != nil {
			return err
		}
		if asJSON {
			return command.WriteJSON(m.Stdout, sum)
		}
		text := fmt.Sprintf("Moved %d messages of topic %s", sum.Done, command.Printable(args[0]))
		for i, name := range slices.Sorted(maps.Keys(sum.To)) {
			text += []string{": ", ", "}[min(i, 1)] + fmt.Sprintf("%d to %s", sum.To[name], command.Printable(name))
		}
		text += ".\n"
		if sum.Skipped > 0 {
			text += fmt.Sprintf("%d messages stay, because it is not known where they come from; --to names a topic.\n",
				sum.Skipped)
		}
		_, err = io.WriteString(m.Stdout, text)
		return err
	})
	c.Flags().StringVar(&to, "to", "", "`topic` that gets the messages, instead of the one that they come from")
	return c
}
