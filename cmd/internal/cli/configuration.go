package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/userfile"
)

// watchPause is the time between two attempts to connect.
const watchPause = time.Second

func (m *Main) configurationCommand() *cobra.Command {
	c := &cobra.Command{Use: "configuration", Short: "Read and write configuration items", Args: cobra.ArbitraryArgs,
		RunE: command.Group}
	c.AddCommand(m.configurationGetCommand(), m.configurationSetCommand(), m.configurationDeleteCommand(),
		m.configurationListCommand(), m.configurationWatchCommand(), m.configurationImportCommand())
	return c
}

// itemsCommand completes c, a command whose first argument is a configuration store. The action of c calls run with a
// client of this store and the remaining arguments.
func (m *Main) itemsCommand(c *cobra.Command,
	run func(ctx context.Context, i *itemsClient, args []string, asJSON bool) error) *cobra.Command {
	set, out := settings.New(), command.Output{}
	c.RunE = func(c *cobra.Command, args []string) error {
		dir, err := m.AdminDir(c, set)
		if err != nil {
			return err
		}
		return run(c.Context(), &itemsClient{&command.AdminClient{DataDir: dir}, args[0]}, args[1:], out.JSON())
	}
	command.BindAdmin(c, set, &out)
	return c
}

// itemsClient uses one configuration store through the admin socket of a node.
type itemsClient struct {
	admin *command.AdminClient
	store string
}

func withKeys(path string, keys []string) string {
	if len(keys) == 0 {
		return path
	}
	return path + "?" + url.Values{"key": keys}.Encode()
}

func (i *itemsClient) get(ctx context.Context, keys []string) (items []configurations.Change, err error) {
	ctx, cancel := context.WithTimeout(ctx, admin.ItemsTime)
	defer cancel()
	err = i.admin.Get(ctx, withKeys(admin.ConfigurationPath(i.store), keys), &items)
	return items, err
}

func (i *itemsClient) write(ctx context.Context, changes ...configurations.Change) (versions []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, admin.ItemsTime)
	defer cancel()
	err = i.admin.Post(ctx, admin.ConfigurationPath(i.store), changes, &versions)
	return versions, err
}

func (m *Main) configurationGetCommand() *cobra.Command {
	return m.itemsCommand(&cobra.Command{
		Use:     "get store key [flags]",
		Short:   "Print the value of a configuration item",
		Long:    "Print the value of a configuration item. It fails if the key does not exist.",
		Example: "  quorate configuration get configstore log-level",
		Args:    cobra.ExactArgs(2),
	}, func(ctx context.Context, i *itemsClient, args []string, asJSON bool) error {
		items, err := i.get(ctx, args)
		switch {
		case err != nil:
			return err
		case len(items) == 0:
			return fault.New(fault.NotFound, "cli.configuration",
				fmt.Sprintf("configuration store %s has no key %q", i.store, args[0]))
		case asJSON:
			return command.WriteJSON(m.Stdout, items[0])
		}
		_, err = fmt.Fprintln(m.Stdout, items[0].Value)
		return err
	})
}

func (m *Main) configurationSetCommand() *cobra.Command {
	version, pairs := "", map[string]string{}
	c := m.itemsCommand(&cobra.Command{
		Use:   "set store key [value] [flags]",
		Short: "Set a configuration item",
		Long: "Set a configuration item. Without a value, or with -, the value is read from standard input, byte\n" +
			"for byte. Applications that subscribe to the key receive it.",
		Example: "  quorate configuration set configstore log-level debug\n" +
			"  quorate configuration set configstore rules --metadata owner=shop < rules.json",
		Args: cobra.RangeArgs(2, 3),
	}, func(ctx context.Context, i *itemsClient, args []string, asJSON bool) error {
		value, err := m.itemValue(args[1:])
		if err != nil {
			return err
		}
		change := configurations.Change{Key: args[0], Value: value, Metadata: pairs, Version: version}
		versions, err := i.write(ctx, change)
		if err != nil || !asJSON || len(versions) == 0 {
			return err
		}
		change.Version = versions[0]
		return command.WriteJSON(m.Stdout, change)
	})
	c.Flags().StringVar(&version, "version", "",
		"set only if this is the current `version` of the item; 0 = only if it does not exist")
	c.Flags().StringToStringVar(&pairs, "metadata", nil, "`name=value` to keep with the item; may be repeated")
	return c
}

func (m *Main) itemValue(args []string) (string, error) {
	if len(args) > 0 && args[0] != "-" {
		return args[0], nil
	}
	text, err := io.ReadAll(m.Stdin)
	if err != nil {
		return "", &fault.Error{Code: fault.Internal, Op: "cli.configuration",
			Msg: "the standard input cannot be read", Err: err}
	}
	return string(text), nil
}

func (m *Main) configurationDeleteCommand() *cobra.Command {
	version := ""
	c := m.itemsCommand(&cobra.Command{
		Use:   "delete store key... [flags]",
		Short: "Delete configuration items",
		Long:  "Delete configuration items, all or none. A key that does not exist is no error.",
		Args:  cobra.MinimumNArgs(2),
	}, func(ctx context.Context, i *itemsClient, keys []string, _ bool) error {
		if version != "" && len(keys) > 1 {
			return command.Usagef("--version is the version of one key, and %d are given", len(keys))
		}
		changes := make([]configurations.Change, len(keys))
		for n, key := range keys {
			changes[n] = configurations.Change{Key: key, Version: version, Delete: true}
		}
		_, err := i.write(ctx, changes...)
		return err
	})
	c.Flags().StringVar(&version, "version", "", "delete only if this is the current `version` of the item")
	return c
}

func (m *Main) configurationListCommand() *cobra.Command {
	return m.itemsCommand(&cobra.Command{
		Use:   "list store [flags]",
		Short: "List configuration items",
		Args:  cobra.ExactArgs(1),
	}, func(ctx context.Context, i *itemsClient, _ []string, asJSON bool) error {
		items, err := i.get(ctx, nil)
		if err != nil {
			return err
		}
		slices.SortFunc(items, func(a, b configurations.Change) int { return strings.Compare(a.Key, b.Key) })
		if asJSON {
			return command.WriteJSON(m.Stdout, items)
		}
		rows := [][]string{{"KEY", "VERSION", "VALUE", "METADATA"}}
		for n := range items {
			rows = append(rows, []string{command.Printable(items[n].Key), command.Dash(items[n].Version),
				oneLine(items[n].Value),
				command.Dash(pairsText(items[n].Metadata))})
		}
		return command.Table(m.Stdout, rows)
	})
}

// oneLine returns a value for a table, on one line and cut after 60 characters.
func oneLine(value string) string {
	const limit = 60
	if text := []rune(value); len(text) > limit {
		value = string(text[:limit]) + "..."
	}
	return command.Printable(value)
}

func pairsText(pairs map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		out = append(out, name+"="+pairs[name])
	}
	return oneLine(strings.Join(out, ","))
}

func (m *Main) configurationImportCommand() *cobra.Command {
	return m.itemsCommand(&cobra.Command{
		Use:   "import store file [flags]",
		Short: "Set configuration items from a file",
		Long: "Set configuration items from a JSON file, all or none. The file has an object of keys and values,\n" +
			"or an array of objects with key, value, metadata and version, as list --json prints it; a version is\n" +
			"a condition. - reads standard input.",
		Example: "  quorate configuration import configstore items.json",
		Args:    cobra.ExactArgs(2),
	}, func(ctx context.Context, i *itemsClient, args []string, _ bool) error {
		changes, err := m.itemFile(args[0])
		if err != nil {
			return err
		}
		if _, err = i.write(ctx, changes...); err != nil {
			return err
		}
		_, err = fmt.Fprintf(m.Stdout, "%d items set in %s\n", len(changes), i.store)
		return err
	})
}

func (m *Main) itemFile(name string) (changes []configurations.Change, err error) {
	var text []byte
	if name == "-" {
		text, err = io.ReadAll(m.Stdin)
	} else {
		text, err = userfile.ReadOnce(name)
	}
	if err != nil {
		return nil, command.Usagef("the file cannot be read: %v", err)
	}
	if text = bytes.TrimSpace(userfile.Text(text)); len(text) > 0 && text[0] == '{' {
		var values map[string]string
		if err := json.Unmarshal(text, &values); err != nil {
			return nil, command.Usagef("%s: an object must have text values only: %v", name, err)
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			changes = append(changes, configurations.Change{Key: key, Value: values[key]})
		}
		return changes, nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&changes); err != nil {
		return nil, command.Usagef("%s is neither a JSON object of keys and values nor an array of items: %v",
			name, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, command.Usagef("%s has more text after the array of items (put all items into one array)", name)
	}
	return changes, nil
}

func (m *Main) configurationWatchCommand() *cobra.Command {
	return m.itemsCommand(&cobra.Command{
		Use:   "watch store [key...] [flags]",
		Short: "Show configuration items, and their changes as they happen",
		Long: "Show configuration items, and then their changes as they happen. The command connects again by\n" +
			"itself when the node was restarted. End it with Ctrl-C.",
		Args: cobra.MinimumNArgs(1),
	}, func(ctx context.Context, i *itemsClient, keys []string, asJSON bool) error {
		w := itemWatch{client: i, keys: keys, known: map[string]configurations.Change{}, asJSON: asJSON,
			out: m.Stdout, log: m.Stderr, pause: watchPause}
		return w.run(ctx)
	})
}

// itemWatch shows the items of a configuration store and their changes.
type itemWatch struct {
	client   *itemsClient
	keys     []string                         // empty = all
	known    map[string]configurations.Change // items that were shown and exist, by key
	asJSON   bool
	out, log io.Writer
	pause    time.Duration // between two attempts to connect
}

// run watches the items until ctx ends, and then returns nil. If the connection is lost, it connects again. It returns
// an error if the first connection fails, or if an error is not temporary (see interrupted).
func (w *itemWatch) run(ctx context.Context) error {
	begun := false
	for last := ""; ; {
		connected, err := w.connect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if begun = begun || connected; !begun || !interrupted(err) {
			return err
		}
		if connected {
			last = ""
		}
		if text := fault.Text(err); text != last { // an outage is reported once
			last = text
			if _, err := fmt.Fprintln(w.log, "connecting again:", text); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(w.pause):
		}
	}
}

// interrupted reports whether err is temporary, so that the watch can continue with a new connection.
func interrupted(err error) bool {
	switch fault.CodeOf(err) {
	case fault.Unavailable, fault.NotLeader, fault.Timeout, fault.Overloaded:
		return true
	}
	return false
}

// connect opens a connection and shows items until the connection ends. It always returns an error. connected reports
// whether the watch had begun before the error.
func (w *itemWatch) connect(ctx context.Context) (connected bool, err error) {
	path := withKeys(admin.ConfigurationWatchPath(w.client.store), w.keys)
	err = command.Lines(ctx, w.client.admin, http.MethodGet, path, nil,
		func(l *admin.ConfigurationLine) json.RawMessage { return l.Error },
		func(l *admin.ConfigurationLine) error {
			if !connected {
				connected = true
				if err := w.showDeleted(l.Items); err != nil {
					return err
				}
			}
			for n := range l.Items {
				if err := w.show(&l.Items[n]); err != nil {
					return err
				}
			}
			return nil
		})
	if err == nil {
		err = fault.New(fault.Unavailable, "cli.configuration", "the connection to the node ended")
	}
	return connected, err
}

// showDeleted shows the items that were deleted before the current connection began, because the watch does not report
// them. These are the items that were shown earlier but did not exist when the connection began. The parameter present
// has all items that existed then.
func (w *itemWatch) showDeleted(present []configurations.Change) error {
	gone := maps.Clone(w.known)
	for n := range present {
		delete(gone, present[n].Key)
	}
	for _, key := range slices.Sorted(maps.Keys(gone)) {
		if err := w.show(&configurations.Change{Key: key, Delete: true}); err != nil {
			return err
		}
	}
	return nil
}

// show prints a change of an item. It prints nothing if the output already shows this state of the item, for example
// after a reconnection. It compares the value and the metadata in addition to the version, because some stores change
// an item without a new version.
func (w *itemWatch) show(c *configurations.Change) error {
	shown, exists := w.known[c.Key]
	switch {
	case c.Delete && !exists, !c.Delete && exists && shown.Version == c.Version && shown.Value == c.Value &&
		maps.Equal(shown.Metadata, c.Metadata):
		return nil
	case c.Delete:
		delete(w.known, c.Key)
	default:
		w.known[c.Key] = *c
	}
	var err error
	switch {
	case w.asJSON:
		err = json.NewEncoder(w.out).Encode(c)
	case c.Delete:
		_, err = fmt.Fprintf(w.out, "%-8s %s (deleted)\n", "-", command.Printable(c.Key))
	default:
		_, err = fmt.Fprintf(w.out, "%-8s %s = %s\n", command.Dash(c.Version), command.Printable(c.Key),
			oneLine(c.Value))
	}
	return err
}
