package statecmd

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
)

// keysPerPage is the number of keys that one request of a listing returns at most.
const keysPerPage = 1000

func (m *commands) stateListCommand() *cobra.Command {
	api, out, f, limit := command.APIFlags{Shell: m.Shell}, command.Output{}, listFlags{}, 0
	c := &cobra.Command{
		Use:   "list store [flags]",
		Short: "List the application's keys",
		Long:  "List the keys of the application that the API serves, in order, in pages.",
		Args:  cobra.ExactArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if limit < 0 {
			return command.Usagef("--limit %d is refused (give a number of keys, or 0 for all)", limit)
		}
		return with(&api, c, func(client *stateClient) error {
			w := bufio.NewWriter(m.Stdout)
			var sink keySink = &tableKeys{w: w}
			if out.JSON() {
				sink = &jsonKeys{w: w}
			}
			l := listing{client: client, store: args[0], flags: f, limit: limit}
			return cmp.Or(l.run(c.Context(), sink), w.Flush())
		})
	}
	api.Bind(c)
	out.Bind(c)
	c.Flags().StringVar(&f.prefix, "prefix", "", "only keys that start with `prefix`")
	c.Flags().BoolVar(&f.actors, "actors", false, "list the state of the application's actors, as type||id||key")
	c.Flags().IntVar(&limit, "limit", 0, "maximum number of keys; 0 = all")
	return c
}

// keySink prints pages of keys.
type keySink interface {
	page(keys []listed) error
	end() error
}

// listing reads all pages of keys of a store.
type listing struct {
	client *stateClient
	store  string
	flags  listFlags
	limit  int // 0 = all
}

func (l *listing) run(ctx context.Context, sink keySink) error {
	token, seen := "", 0
	for {
		size := keysPerPage
		if l.limit > 0 {
			size = min(size, l.limit-seen)
		}
		keys, next, err := l.client.page(ctx, l.store, l.flags, token, size)
		if err != nil {
			return err
		}
		if err := sink.page(keys); err != nil {
			return err
		}
		seen += len(keys)
		if token = next; token == "" || l.limit > 0 && seen >= l.limit {
			return sink.end()
		}
	}
}

// tableKeys prints keys for people, one table for each page.
type tableKeys struct {
	w     io.Writer
	begun bool
}

func (t *tableKeys) page(keys []listed) error {
	var rows [][]string
	if !t.begun {
		rows, t.begun = [][]string{{"ETAG", "EXPIRES", "KEY"}}, true
	}
	for _, k := range keys {
		rows = append(rows, []string{command.Dash(k.ETag), command.Dash(k.Expires), command.Printable(k.Key)})
	}
	return command.Table(t.w, rows)
}

func (t *tableKeys) end() error { return nil }

// jsonKeys prints keys as one JSON array, one element per line.
type jsonKeys struct {
	w     io.Writer
	begun bool
}

func (j *jsonKeys) page(keys []listed) error {
	for _, k := range keys {
		separator := ",\n"
		if !j.begun {
			separator, j.begun = "[\n", true
		}
		text, err := json.Marshal(k)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(j.w, separator+"  "+string(text)); err != nil {
			return err
		}
	}
	return nil
}

func (j *jsonKeys) end() error {
	end := "\n]\n"
	if !j.begun {
		end = "[]\n"
	}
	_, err := io.WriteString(j.w, end)
	return err
}
