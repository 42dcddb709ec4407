package statecmd

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
)

func (m *commands) stateCommand() *cobra.Command {
	c := &cobra.Command{Use: "state", Short: "Read and write state through a node's API", Args: cobra.ArbitraryArgs,
		RunE: command.Group}
	c.AddCommand(m.stateGetCommand(), m.stateSetCommand(), m.stateDeleteCommand(), m.stateListCommand(),
		m.stateWatchCommand(),
		m.stateCopyCommand())
	return c
}

func (m *commands) stateGetCommand() *cobra.Command {
	api, out, o := command.APIFlags{Shell: m.Shell}, command.Output{}, readOptions{}
	c := &cobra.Command{
		Use:   "get store key [flags]",
		Short: "Print the value of a key",
		Long:  "Print the value of a key, byte for byte. It fails if the key does not exist.",
		Example: "  quorate state get statestore order-7\n" +
			"  quorate state get statestore order-7 --consistency strong --json",
		Args: cobra.ExactArgs(2),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return with(&api, c, func(client *stateClient) error {
			it, err := client.get(c.Context(), args[0], args[1], o)
			if err != nil {
				return err
			}
			return m.printItem(args[0], it, out.JSON())
		})
	}
	api.Bind(c)
	out.Bind(c)
	consistencyFlag(c, &o.consistency)
	c.Flags().StringVar(&o.maxStaleness, "max-staleness", "",
		"how old the result of an eventual read may be, for example 500ms")
	return c
}

func consistencyFlag(c *cobra.Command, p *string) {
	c.Flags().StringVar(p, "consistency", "", "`level`: strong or eventual (default: the store's)")
	_ = c.RegisterFlagCompletionFunc("consistency",
		cobra.FixedCompletions([]string{"strong", "eventual"}, cobra.ShellCompDirectiveNoFileComp))
}

func (m *commands) printItem(store string, it item, asJSON bool) error {
	if asJSON {
		if err := command.WriteJSON(m.Stdout, it); err != nil || it.Found {
			return err
		}
	}
	if !it.Found {
		return fault.New(fault.NotFound, "cli.state", fmt.Sprintf("store %s has no key %q", store, it.Key))
	}
	if _, err := m.Stdout.Write(it.bytes); err != nil {
		return err
	}
	if command.IsTerminal(m.Stdout) {
		_, err := fmt.Fprintln(m.Stdout)
		return err
	}
	return nil
}

// setFlags are the flags of state set.
type setFlags struct {
	etag, consistency string
	createOnly        bool
	ttl               time.Duration
	text, binary      bool
}

func (m *commands) stateSetCommand() *cobra.Command {
	api, out, f := command.APIFlags{Shell: m.Shell}, command.Output{}, setFlags{}
	c := &cobra.Command{
		Use:   "set store key [value] [flags]",
		Short: "Save a value",
		Long: "Save a value. It must be JSON, which is kept byte for byte, unless --text or --binary is given.\n" +
			"Without a value, or with -, the value is read from standard input.",
		Example: "  quorate state set statestore order-7 '{\"total\": 12.50}'\n" +
			"  quorate state set statestore greeting --text hello\n" +
			"  quorate state set statestore photo --binary < photo.jpg",
		Args: cobra.RangeArgs(2, 3),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		value, err := m.value(args[2:], f)
		if err != nil {
			return err
		}
		return with(&api, c, func(client *stateClient) error {
			etag, err := client.set(c.Context(), args[0], f.write(args[1], value))
			if err != nil || !out.JSON() {
				return err
			}
			return command.WriteJSON(m.Stdout, item{Key: args[1], Found: true, ETag: etag})
		})
	}
	api.Bind(c)
	out.Bind(c)
	f.bind(c)
	return c
}

func (f *setFlags) bind(c *cobra.Command) {
	c.Flags().StringVar(&f.etag, "etag", "", "write only if this is the current `etag` of the key")
	c.Flags().BoolVar(&f.createOnly, "create-only", false, "write only if the key does not exist")
	c.Flags().DurationVar(&f.ttl, "ttl", 0, "delete the key after this time, in whole seconds, for example 90s or 24h")
	c.Flags().BoolVar(&f.text, "text", false, "the value is text, saved as a JSON string")
	c.Flags().BoolVar(&f.binary, "binary", false, "the value is binary data, returned unchanged")
	consistencyFlag(c, &f.consistency)
}

// check refuses flags that contradict each other.
func (f *setFlags) check() error {
	switch {
	case f.text && f.binary:
		return command.Usagef("--text and --binary exclude each other (give one)")
	case f.etag != "" && f.createOnly:
		return command.Usagef("--etag and --create-only exclude each other (a key that exists has an etag)")
	case f.ttl < 0, f.ttl%time.Second != 0:
		return command.Usagef("--ttl %s is refused (give whole seconds, for example 90s or 24h)", f.ttl)
	}
	return nil
}

// value returns the value from the arguments or standard input, as JSON.
func (m *commands) value(args []string, f setFlags) ([]byte, error) {
	raw := []byte(strings.Join(args, ""))
	if len(args) == 0 || args[0] == "-" {
		var err error
		if raw, err = io.ReadAll(m.Stdin); err != nil {
			return nil, &fault.Error{Code: fault.Internal, Op: "cli.state", Msg: "the standard input cannot be read",
				Err: err}
		}
	}
	switch {
	case f.binary:
		return json.Marshal(base64.StdEncoding.EncodeToString(raw))
	case f.text:
		return json.Marshal(string(raw))
	case !json.Valid(raw):
		return nil, command.Usagef("the value is not JSON (save text with --text, bytes with --binary)")
	}
	return raw, nil
}

func (f *setFlags) write(key string, value []byte) write {
	w := write{Key: key, ETag: f.etag, Metadata: map[string]string{}, Options: map[string]string{}, value: value}
	if f.ttl > 0 {
		w.Metadata["ttlInSeconds"] = strconv.FormatInt(int64(f.ttl/time.Second), 10)
	}
	if f.binary {
		w.Metadata["contentType"] = "application/octet-stream"
	}
	if f.createOnly {
		w.Options["concurrency"] = "first-write"
	}
	if f.consistency != "" {
		w.Options["consistency"] = f.consistency
	}
	return w
}

func (m *commands) stateDeleteCommand() *cobra.Command {
	api, etag, consistency := command.APIFlags{Shell: m.Shell}, "", ""
	c := &cobra.Command{
		Use:   "delete store key [flags]",
		Short: "Delete a key",
		Long:  "Delete a key. It succeeds if the key does not exist, unless an etag is given.",
		Args:  cobra.ExactArgs(2),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return with(&api, c, func(client *stateClient) error {
			return client.delete(c.Context(), args[0], args[1], etag, readOptions{consistency: consistency}.query())
		})
	}
	api.Bind(c)
	consistencyFlag(c, &consistency)
	c.Flags().StringVar(&etag, "etag", "", "delete only if this is the current `etag` of the key")
	return c
}
