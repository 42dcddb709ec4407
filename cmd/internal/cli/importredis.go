package cli

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/redisimport"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

func (m *Main) importCommand() *cobra.Command {
	c := &cobra.Command{Use: "import", Short: "Copy state from another system into a store",
		Args: cobra.ArbitraryArgs, RunE: group}
	c.AddCommand(m.importRedisCommand())
	return c
}

// importFlags are the flags of import redis.
type importFlags struct {
	api            apiFlags
	server         redisimport.Server
	passwordFile   string
	tls            bool
	caFile         string
	certFile       string
	keyFile        string
	prefix         string
	from           state.Owner
	dry, overwrite bool
	batch, workers int
	patience       time.Duration
	interval       time.Duration
	skipped        string
}

// mostWorkers limits --concurrency, and with it the idle connections that are kept.
const mostWorkers = 64

// batchBytes limits the size of the values of one write. A log entry may be as large.
const batchBytes = 512 << 10

// importReport is the JSON output of the command.
type importReport struct {
	Store string `json:"store"`
	App   string `json:"app"`
	redisimport.Report
}

func (m *Main) importRedisCommand() *cobra.Command {
	f, out := importFlags{api: apiFlags{main: m}}, output{}
	c := &cobra.Command{
		Use:   "redis store [flags]",
		Short: "Copy the state that Dapr keeps in Redis",
		Long: "Copy the state of one application from a Redis state store of Dapr into a store of Quorate,\n" +
			"through the HTTP API of the application's node. The command only reads from Redis. The node\n" +
			"determines the application: run the command once per application. Values are copied byte for\n" +
			"byte and keep their remaining TTL; ETags are new. Keys that the store already has are skipped,\n" +
			"so a second run continues where the first one ended. Every key that is not copied is counted\n" +
			"and reported with the reason. The exit code is 0 if no state of the application is missing.\n\n" +
			"The password of Redis comes from REDIS_PASSWORD or --redis-password-file, never from a flag.",
		Example: "  quorate import redis statestore --dry-run\n" +
			"  quorate import redis statestore --redis-address redis.example:6379 --redis-tls\n" +
			"  quorate import redis statestore --key-prefix name --from-store redisstore --skipped-file skipped.jsonl",
		Args: cobra.ExactArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		return f.api.with(c, func(client *stateClient) error {
			ctx, release := m.interruptible(c.Context())
			defer release()
			return m.importRedis(ctx, client, args[0], f, out.json())
		})
	}
	f.bind(c)
	out.bind(c)
	return c
}

func (f *importFlags) bind(c *cobra.Command) {
	f.api.bind(c)
	fl := c.Flags()
	fl.StringVar(&f.server.Address, "redis-address", "127.0.0.1:6379",
		"`address` of the Redis server, or of the current master")
	fl.StringVar(&f.server.Username, "redis-username", "", "`name` of the Redis user; empty = the default user")
	fl.StringVar(&f.passwordFile, "redis-password-file", "", "`file` with the password; wins over REDIS_PASSWORD")
	fl.IntVar(&f.server.DB, "redis-db", 0, "`number` of the database")
	fl.BoolVar(&f.tls, "redis-tls", false, "connect to Redis with TLS")
	fl.StringVar(&f.caFile, "redis-ca-file", "", "`file` with the CA certificates that Redis is verified against")
	fl.StringVar(&f.certFile, "redis-cert-file", "", "`file` with the client certificate for Redis")
	fl.StringVar(&f.keyFile, "redis-key-file", "", "`file` with the private key of that certificate")
	fl.StringVar(&f.prefix, "key-prefix", state.KeyPrefixAppID,
		"keyPrefix of the Redis component: appid, namespace, name, none, or a literal `prefix`")
	fl.StringVar(&f.from.App, "from-app", "", "`id` of the application in Redis (default: the application of the node)")
	fl.StringVar(&f.from.Namespace, "from-namespace", "",
		"`namespace` of the application in Dapr, for --key-prefix namespace")
	fl.StringVar(&f.from.Store, "from-store", "",
		"`name` of the Redis component, for --key-prefix name (default: the name of the store)")
	fl.BoolVar(&f.dry, "dry-run", false, "write nothing, only report what would be copied")
	fl.BoolVar(&f.overwrite, "overwrite", false,
		"replace the values of keys that the store already has, even newer ones")
	fl.IntVar(&f.batch, "batch", 100, "`keys` per write")
	fl.IntVar(&f.workers, "concurrency", 4, "number of concurrent `writes`")
	fl.DurationVar(&f.patience, "patience", 30*time.Second, "how long to retry a write that the node cannot take")
	fl.DurationVar(&f.interval, "progress", 5*time.Second, "time between progress lines; 0 = none")
	fl.StringVar(&f.skipped, "skipped-file", "",
		"`file` that lists every key that is not copied, with the reason, as JSON lines")
}

// check refuses flags that contradict each other or are out of range.
func (f *importFlags) check() error {
	switch {
	case f.batch < 1 || f.batch > 1000:
		return usagef("--batch %d is refused (give 1 to 1000 keys)", f.batch)
	case f.workers < 1 || f.workers > mostWorkers:
		return usagef("--concurrency %d is refused (give 1 to %d)", f.workers, mostWorkers)
	case f.server.DB < 0:
		return usagef("--redis-db %d is refused (give the number of a database)", f.server.DB)
	case f.patience < 0 || f.interval < 0:
		return usagef("--patience and --progress must not be negative")
	case (f.certFile == "") != (f.keyFile == ""):
		return usagef("--redis-cert-file and --redis-key-file belong together (give both)")
	case !f.tls && f.caFile+f.certFile != "":
		return usagef("--redis-ca-file and --redis-cert-file need TLS (add --redis-tls)")
	}
	return nil
}

// importRedis copies the state from Redis and prints the report. It returns an error if some state
// of the application could not be copied.
func (m *Main) importRedis(ctx context.Context, client *stateClient, store string, f importFlags,
	asJSON bool) (err error) {
	i, err := m.prepareImport(ctx, client, store, &f)
	if err != nil {
		return err
	}
	if f.skipped != "" {
		file, err := os.OpenFile(f.skipped, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return importFileError(f.skipped, err)
		}
		w := bufio.NewWriter(file)
		i.Skipped = w
		defer func() {
			if closing := errors.Join(w.Flush(), file.Close()); closing != nil {
				err = errors.Join(err, importFileError(f.skipped, closing))
			}
		}()
	}
	report, failure := i.Run(ctx)
	full := importReport{store, f.from.App, report}
	if asJSON {
		err = writeJSON(m.Stdout, full)
	} else {
		err = printImport(m.Stdout, full)
	}
	switch {
	case failure != nil:
		return errors.Join(because(ctx, failure), err)
	case report.Lost() > 0:
		return &fault.Error{Code: fault.Internal, Op: "cli.import",
			Msg:  fmt.Sprintf("state is missing: %d of the application's keys were not copied", report.Lost()),
			Hint: "see the summary; --skipped-file lists all of them"}
	}
	return err
}

// prepareImport checks that the node is ready and builds the import from the flags.
func (m *Main) prepareImport(ctx context.Context, client *stateClient, store string,
	f *importFlags) (i redisimport.Import, err error) {
	app, err := readyFor(ctx, client, store)
	if err != nil {
		return i, err
	}
	f.from.App, f.from.Store = cmp.Or(f.from.App, app), cmp.Or(f.from.Store, store)
	prefix, err := keyPrefix(f.prefix, f.from)
	if err != nil {
		return i, err
	}
	f.server.Timeout = f.api.timeout
	if f.server.Password, err = m.redisPassword(f.passwordFile); err != nil {
		return i, err
	}
	if f.server.TLS, err = f.tlsConfig(); err != nil {
		return i, err
	}
	i = redisimport.Import{
		Server: f.server, Keys: redisimport.Keys{Prefix: prefix, Owner: f.from}, Target: importTarget{client, store},
		DryRun: f.dry, Overwrite: f.overwrite, Batch: f.batch, Bytes: batchBytes, MaxValue: node.MaxEntry,
		Workers: f.workers,
		Pause:   patience(f.patience),
	}
	if f.interval > 0 {
		i.Progress = func(now func() redisimport.Report) func() { return m.importProgress(f.interval, now) }
	}
	return i, nil
}

// readyFor checks that the node is ready and has the store. It returns the app id of the node.
func readyFor(ctx context.Context, client *stateClient, store string) (app string, err error) {
	if _, err := client.do(ctx, http.MethodGet, "/v1.0/healthz/outbound", nil, nil, nil); err != nil {
		return "", fault.Wrap(err, "cli.import", "the node at "+client.base+" is not ready")
	}
	app, stores, err := client.about(ctx)
	if err != nil {
		return "", err
	}
	if !slices.Contains(stores, store) {
		return "", usagef("the node has no state store %s (it has: %s)", store, dash(strings.Join(stores, ", ")))
	}
	return app, nil
}

// redisPassword returns the password from the file or the environment.
func (m *Main) redisPassword(file string) (string, error) {
	if file == "" {
		return m.getenv("REDIS_PASSWORD"), nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", importFileError(file, err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" || strings.ContainsAny(password, "\r\n") {
		return "", usagef("%s is not a password file (it must contain exactly one line)", file)
	}
	return password, nil
}

// tlsConfig returns nil if TLS is off.
func (f *importFlags) tlsConfig() (*tls.Config, error) {
	if !f.tls {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.caFile != "" {
		text, err := os.ReadFile(f.caFile)
		if err != nil {
			return nil, importFileError(f.caFile, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, usagef("%s contains no certificate (it must be PEM)", f.caFile)
		}
	}
	if f.certFile != "" {
		pair, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
		if err != nil {
			return nil, importFileError(f.certFile, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

func importFileError(path string, err error) error {
	return &fault.Error{Code: fault.Invalid, Op: "cli.import", Key: path, Msg: "the file " + path + " cannot be used",
		Err: rootPath(err)}
}

// importProgress prints a line at each interval until stop is called.
func (m *Main) importProgress(interval time.Duration, now func() redisimport.Report) (stop func()) {
	done, ended, begun := make(chan struct{}), make(chan struct{}), time.Now()
	go func() {
		defer close(ended)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for before := int64(0); ; {
			select {
			case <-tick.C:
				r := now()
				fmt.Fprintln(m.Stderr, progressLine(r, r.Seen-before, interval, time.Since(begun)))
				before = r.Seen
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// progressLine returns one line about the progress of an import.
func progressLine(r redisimport.Report, since int64, interval, took time.Duration) string {
	var skipped int64
	for _, c := range r.Skipped {
		skipped += c.Keys
	}
	share := 100.0
	if r.Estimate > 0 {
		share = min(100, 100*float64(r.Seen)/float64(r.Estimate))
	}
	return fmt.Sprintf("%s: %d of about %d keys seen (%.0f %%), %d copied, %d skipped, %.0f keys/s",
		took.Round(time.Second), r.Seen, r.Estimate, share, r.Copied, skipped, float64(since)/interval.Seconds())
}

func printImport(w io.Writer, r importReport) error {
	verb := "Copied"
	if r.DryRun {
		verb = "Would copy"
	}
	fmt.Fprintf(w, "%s %s (%s; %d expire, %d are bytes) of application %s to store %s.\n",
		verb, count(int(r.Copied), "key"), bytesText(r.Bytes), r.Expiring, r.Binary, r.App, r.Store)
	if !r.Complete {
		fmt.Fprintf(w, "The import is incomplete: %d of about %d keys were read. Run the command again to "+
			"continue.\n", r.Seen, r.Estimate)
	}
	rows := [][]string{{"NOT COPIED", "KEYS", "STATE MISSING", "FOR EXAMPLE"}}
	for _, c := range r.Skipped {
		rows = append(rows, []string{string(c.Reason), strconv.FormatInt(c.Keys, 10), yesNo(c.Lost), examples(c)})
	}
	if len(rows) > 1 {
		if err := table(w, rows); err != nil {
			return err
		}
	}
	if len(r.Prefixes) == 0 {
		return nil
	}
	rows = [][]string{{"OTHER PREFIX", "KEYS"}}
	for _, p := range slices.Sorted(maps.Keys(r.Prefixes)) {
		rows = append(rows, []string{cmp.Or(printable(p), "(others)"), strconv.FormatInt(r.Prefixes[p], 10)})
	}
	return table(w, rows)
}

// examples returns a few keys, with the details of why they were skipped.
func examples(c redisimport.Count) string {
	const most = 3
	var out []string
	for _, s := range c.Examples[:min(most, len(c.Examples))] {
		text := printable(s.Key)
		if s.Detail != "" {
			text += " (" + s.Detail + ")"
		}
		out = append(out, text)
	}
	if c.Keys > most {
		out = append(out, "...")
	}
	return strings.Join(out, ", ")
}
