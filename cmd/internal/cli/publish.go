package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/appcmd"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/userfile"
)

// publication is the message to publish, as the flags give it.
type publication struct {
	data, file, contentType, key string
	metadata                     map[string]string
}

func (m *Main) publishCommand() *cobra.Command {
	set, out, in := settings.New(), command.Output{}, publication{}
	pubsub, topic, app := "", "", ""
	c := &cobra.Command{Use: "publish [topic] [flags]", Short: "Publish a message to a topic",
		Long: "Publish a message to a topic, as an application does. The topic is the argument or --topic, as in\n" +
			"Dapr. Without --data and --file, the data is read from standard input, which must not be empty. The\n" +
			"scopes of the component do not apply. The node logs the publish, but not the data.",
		Example: "  quorate publish orders --data '{\"order\": 1}'\n" +
			"  quorate publish --pubsub pubsub --topic orders --data-file order.json\n" +
			"  quorate publish orders --file order.json --key customer-7 --metadata ttlInSeconds=60"}
	f := c.Flags()
	bindPubSub(c, &pubsub)
	f.StringVarP(&topic, "topic", "t", "", "`topic`, instead of the argument")
	f.StringVarP(&app, "publish-app-id", "i", "", "use the node on this machine that runs the application with this "+
		"`id`, as in Dapr")
	f.StringVarP(&in.data, "data", "d", "", "`text` to publish; may be empty")
	f.StringVarP(&in.file, "file", "f", "", "`file` with the data; - = standard input")
	f.StringVar(&in.file, "data-file", "", "the same as --file: a `file` with the data")
	f.StringVar(&in.contentType, "content-type", "", "content `type` of the data (default application/json for JSON, "+
		"application/cloudevents+json for a CloudEvent, otherwise text/plain)")
	f.StringVar(&in.key, "key", "", "messages with the same `key` keep their order; the same as --metadata "+
		"partitionKey=key")
	f.StringToStringVar(&in.metadata, "metadata", nil, "`name=value` of the metadata; may be repeated")
	c.MarkFlagsMutuallyExclusive("data", "file", "data-file")
	c.RunE = func(c *cobra.Command, args []string) error {
		if topic == "" && len(args) > 0 {
			topic, args = args[0], args[1:]
		}
		switch {
		case len(args) == 1 && !c.Flags().Changed("topic"):
			return command.Usagef("name one topic; --pubsub names the component (quorate publish %s --pubsub %s)",
				args[0], topic)
		case topic == "" || len(args) > 0:
			return command.Usagef("name one topic (usage: %s)", c.UseLine())
		}
		r, err := m.publication(c, in)
		if err != nil {
			return err
		}
		r.PubSub, r.Topic = pubsub, topic
		dir, err := m.publishDir(c, set, app)
		if err != nil {
			return err
		}
		return m.publish(c.Context(), &command.AdminClient{DataDir: dir}, r, out.JSON())
	}
	command.BindAdmin(c, set, &out)
	c.MarkFlagsMutuallyExclusive("publish-app-id", "data-dir")
	return c
}

// publishDir returns the data directory of the node that runs app. If app is empty, the flags choose the node.
func (m *Main) publishDir(c *cobra.Command, set *settings.Set, app string) (string, error) {
	if app == "" {
		return m.AdminDir(c, set)
	}
	config, err := m.Resolve(set, c.Flags(), nil)
	if err != nil {
		return "", err
	}
	return appcmd.DataDir(config.Data.RuntimeDir, app)
}

func (m *Main) publish(ctx context.Context, a *command.AdminClient, r schema.TopicPublish, asJSON bool) error {
	ctx, cancel := context.WithTimeout(ctx, command.AdminTime)
	defer cancel()
	var done schema.TopicPublished
	if err := a.Post(ctx, adminapi.TopicPublishPath, r, &done); err != nil {
		return err
	}
	if asJSON {
		return command.WriteJSON(m.Stdout, done)
	}
	_, err := fmt.Fprintf(m.Stdout, "Published %s of %s to topic %s of %s.\n", command.Count(done.Bytes, "byte"),
		command.Printable(done.ContentType), command.Printable(done.Topic), done.PubSub)
	return err
}

// publication returns the publish request that the flags describe. It reads the data from the flag, the file or
// standard input. If no content type is given, it derives one from the data.
func (m *Main) publication(c *cobra.Command, in publication) (r schema.TopicPublish, err error) {
	r.Metadata = in.metadata
	switch {
	case c.Flags().Changed("data"):
		r.Data = []byte(in.data)
	case in.file != "" && in.file != "-":
		if r.Data, err = userfile.ReadOnce(in.file); err != nil {
			return r, command.Usage(&fault.Error{Code: fault.Invalid, Op: "cli.publish", Key: in.file,
				Msg: "the file of --file cannot be read", Err: command.RootPath(err)})
		}
	default:
		if command.IsTerminal(m.Stdin) {
			fmt.Fprintln(m.Stderr, "Type the message, and end it with Ctrl-D on an empty line.")
		}
		if r.Data, err = io.ReadAll(m.Stdin); err != nil {
			return r, &fault.Error{Code: fault.Internal, Op: "cli.publish", Msg: "the standard input cannot be read",
				Err: err}
		}
		if len(r.Data) == 0 {
			return r, command.Usagef("the standard input is empty, so nothing is published; write --data '' for an " +
				"empty message")
		}
	}
	if in.key != "" {
		if other, given := r.Metadata["partitionKey"]; given && other != in.key {
			return r, command.Usagef("--key and --metadata partitionKey differ")
		}
		if r.Metadata == nil {
			r.Metadata = map[string]string{}
		}
		r.Metadata["partitionKey"] = in.key
	}
	if r.ContentType = in.contentType; r.ContentType == "" {
		r.ContentType = contentTypeOf(r.Data)
	}
	return r, nil
}

// contentTypeOf returns the content type of data for which the user gave none. It uses the same rule as dapr publish: a
// CloudEvent, other JSON, or otherwise text/plain.
func contentTypeOf(data []byte) string {
	if !json.Valid(data) {
		return "text/plain"
	}
	var event map[string]json.RawMessage
	if json.Unmarshal(data, &event) == nil && event["id"] != nil && event["source"] != nil && event["type"] != nil &&
		event["specversion"] != nil {
		return "application/cloudevents+json"
	}
	return "application/json"
}
