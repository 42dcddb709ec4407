package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
)

// completionTime is how long the shell waits for the names of stores.
const completionTime = 300 * time.Millisecond

// apiFlags are the flags that locate the API.
type apiFlags struct {
	main    *Main
	set     *settings.Set
	address string
	timeout time.Duration
}

func (f *apiFlags) bind(c *cobra.Command) {
	f.set = settings.New()
	f.set.BindOnly(c.Flags(), "http-port", "api-token-file", "config-file")
	c.Flags().StringVar(&f.address, "address", "",
		"`address` of the API, for example 127.0.0.1:3500, or a URL; overrides --http-port")
	c.Flags().DurationVar(&f.timeout, "timeout", 15*time.Second, "timeout of a request")
	c.ValidArgsFunction = f.completeStore
}

// with determines the address and the token of the API, and calls do with a client.
func (f *apiFlags) with(c *cobra.Command, do func(*stateClient) error) error {
	config, err := f.main.resolve(f.set, c.Flags(), nil)
	if err != nil {
		return err
	}
	// not the default transport, which would keep the connections
	transport := &http.Transport{ExpectContinueTimeout: f.timeout, MaxIdleConnsPerHost: mostWorkers}
	defer transport.CloseIdleConnections()
	client := &stateClient{base: f.base(config.API.HTTP.Number, config.API.Listen[0]),
		http: &http.Client{Transport: transport, Timeout: f.timeout}}
	if tokens := config.Security.APITokens; len(tokens) > 0 {
		client.token = string(tokens[0])
	}
	return do(client)
}

// base returns the base URL of the HTTP API. It uses the first of these that is set: the address flag;
// DAPR_HTTP_ENDPOINT or DAPR_HTTP_PORT, unless http-port is set; host and port.
func (f *apiFlags) base(port int, host string) string {
	address := f.address
	if address == "" && f.set.Named("http-port").Source().Kind == "default" {
		if address = f.main.getenv("DAPR_HTTP_ENDPOINT"); address == "" {
			if p := f.main.getenv("DAPR_HTTP_PORT"); p != "" {
				address = net.JoinHostPort(host, p)
			}
		}
	}
	if address == "" {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		address = net.JoinHostPort(host, strconv.Itoa(port))
	}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	return strings.TrimRight(address, "/")
}

// completeStore completes the first argument with the names of the node's stores. If the node does not answer, there
// are no completions.
func (f *apiFlags) completeStore(c *cobra.Command, args []string, _ string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionTime)
	defer cancel()
	var names []string
	_ = f.with(c, func(client *stateClient) (err error) { // an error must not print while the user types
		names, err = client.stores(ctx)
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (m *Main) stateCommand() *cobra.Command {
	c := &cobra.Command{Use: "state", Short: "Read and write state through a node's API", Args: cobra.ArbitraryArgs,
		RunE: group}
	c.AddCommand(m.stateGetCommand(), m.stateSetCommand(), m.stateDeleteCommand(), m.stateListCommand(),
		m.stateWatchCommand(),
		m.stateCopyCommand())
	return c
}

func (m *Main) stateGetCommand() *cobra.Command {
	api, out, o := apiFlags{main: m}, output{}, readOptions{}
	c := &cobra.Command{
		Use:   "get store key [flags]",
		Short: "Print the value of a key",
		Long:  "Print the value of a key, byte for byte. It fails if the key does not exist.",
		Example: "  quorate state get statestore order-7\n" +
			"  quorate state get statestore order-7 --consistency strong --json",
		Args: cobra.ExactArgs(2),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return api.with(c, func(client *stateClient) error {
			it, err := client.get(c.Context(), args[0], args[1], o)
			if err != nil {
				return err
			}
			return m.printItem(args[0], it, out.json())
		})
	}
	api.bind(c)
	out.bind(c)
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

func (m *Main) printItem(store string, it item, asJSON bool) error {
	if asJSON {
		if err := writeJSON(m.Stdout, it); err != nil || it.Found {
			return err
		}
	}
	if !it.Found {
		return fault.New(fault.NotFound, "cli.state", fmt.Sprintf("store %s has no key %q", store, it.Key))
	}
	if _, err := m.Stdout.Write(it.bytes); err != nil {
		return err
	}
	if isTerminal(m.Stdout) {
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

func (m *Main) stateSetCommand() *cobra.Command {
	api, out, f := apiFlags{main: m}, output{}, setFlags{}
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
		return api.with(c, func(client *stateClient) error {
			etag, err := client.set(c.Context(), args[0], f.write(args[1], value))
			if err != nil || !out.json() {
				return err
			}
			return writeJSON(m.Stdout, item{Key: args[1], Found: true, ETag: etag})
		})
	}
	api.bind(c)
	out.bind(c)
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
		return usagef("--text and --binary exclude each other (give one)")
	case f.etag != "" && f.createOnly:
		return usagef("--etag and --create-only exclude each other (a key that exists has an etag)")
	case f.ttl < 0, f.ttl%time.Second != 0:
		return usagef("--ttl %s is refused (give whole seconds, for example 90s or 24h)", f.ttl)
	}
	return nil
}

// value returns the value from the arguments or standard input, as JSON.
func (m *Main) value(args []string, f setFlags) ([]byte, error) {
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
		return nil, usagef("the value is not JSON (save text with --text, bytes with --binary)")
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

func (m *Main) stateDeleteCommand() *cobra.Command {
	api, etag, consistency := apiFlags{main: m}, "", ""
	c := &cobra.Command{
		Use:   "delete store key [flags]",
		Short: "Delete a key",
		Long:  "Delete a key. It succeeds if the key does not exist, unless an etag is given.",
		Args:  cobra.ExactArgs(2),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return api.with(c, func(client *stateClient) error {
			return client.delete(c.Context(), args[0], args[1], etag, readOptions{consistency: consistency}.query())
		})
	}
	api.bind(c)
	consistencyFlag(c, &consistency)
	c.Flags().StringVar(&etag, "etag", "", "delete only if this is the current `etag` of the key")
	return c
}

// printable returns key. If key contains unprintable characters, it is quoted, because control characters could alter
// the terminal.
func printable(key string) string {
	for _, r := range key {
		if !unicode.IsPrint(r) {
			return strconv.Quote(key)
		}
	}
	return key
}
