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
	c := &cobra.Command{Use: "import", Short: "Copy state from elsewhere into a store", Args: cobra.ArbitraryArgs, RunE: group}
	c.AddCommand(m.importRedisCommand())
	return c
}

// importFlags are the choices of import redis.
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

// mostWorkers bounds --concurrency, and the connections that are kept for it.
const mostWorkers = 64

// batchBytes bounds the values of one write: an entry of the log holds as much.
const batchBytes = 512 << 10

// importReport is what the command tells a program.
type importReport struct {
	Store string `json:"store"`
	App   string `json:"app"`
	redisimport.Report
}

func (m *Main) importRedisCommand() *cobra.Command {
	f, out := importFlags{api: apiFlags{main: m}}, output{}
	c := &cobra.Command{
		Use:   "redis store [flags]",
		Short: "Copy the state that another runtime of this API keeps in Redis",
		Long: "Copy the state of one application from a Redis state store of another runtime of this API\n" +
			"into a store, through the HTTP API of the application's node. Redis is only read. The API\n" +
			"decides whose state it is: run it once for each application. Values are kept byte for byte,\n" +
			"and what is left of their life; ETags are new. Keys that the store has are left alone, so a\n" +
			"second run goes on where the first one ended. Every key that is not copied is counted and\n" +
			"named with the reason. The exit code is 0 if no state of the application is missing.\n\n" +
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
	fl.StringVar(&f.server.Address, "redis-address", "127.0.0.1:6379", "`address` of the Redis server, or of the current master")
	fl.StringVar(&f.server.Username, "redis-username", "", "`name` of the Redis user; empty is the default one")
	fl.StringVar(&f.passwordFile, "redis-password-file", "", "`file` with the password; wins over REDIS_PASSWORD")
	fl.IntVar(&f.server.DB, "redis-db", 0, "`number` of the database")
	fl.BoolVar(&f.tls, "redis-tls", false, "connect to Redis with TLS")
	fl.StringVar(&f.caFile, "redis-ca-file", "", "`file` with the authorities that may have signed the certificate of Redis")
	fl.StringVar(&f.certFile, "redis-cert-file", "", "`file` with a certificate to show to Redis")
	fl.StringVar(&f.keyFile, "redis-key-file", "", "`file` with the key of that certificate")
	fl.StringVar(&f.prefix, "key-prefix", state.KeyPrefixAppID, "keyPrefix of the Redis component: appid, namespace, name, none, or a literal `prefix`")
	fl.StringVar(&f.from.App, "from-app", "", "`id` of the application in Redis (default: that of the API)")
	fl.StringVar(&f.from.Namespace, "from-namespace", "", "`namespace` of the old runtime, for --key-prefix namespace")
	fl.StringVar(&f.from.Store, "from-store", "", "`name` of the Redis component, for --key-prefix name (default: that of the store)")
	fl.BoolVar(&f.dry, "dry-run", false, "write nothing, and report what would be copied")
	fl.BoolVar(&f.overwrite, "overwrite", false, "replace the values of keys that the store has, also newer ones")
	fl.IntVar(&f.batch, "batch", 100, "`keys` of one write")
	fl.IntVar(&f.workers, "concurrency", 4, "`writes` under way at a time")
	fl.DurationVar(&f.patience, "patience", 30*time.Second, "how long a write that fails because of the node is tried again")
	fl.DurationVar(&f.interval, "progress", 5*time.Second, "time between lines of progress; 0 is none")
	fl.StringVar(&f.skipped, "skipped-file", "", "`file` for every key that is not copied, with the reason, as JSON lines")
}

// check refuses choices that make no sense.
func (f *importFlags) check() error {
	switch {
	case f.batch < 1 || f.batch > 1000:
		return usagef("--batch %d is refused (give 1 to 1000 keys)", f.batch)
	case f.workers < 1 || f.workers > mostWorkers:
		return usagef("--concurrency %d is refused (give 1 to %d)", f.workers, mostWorkers)
	case f.server.DB < 0:
		return usagef("--redis-db %d is refused (give the number of a database)", f.server.DB)
	case f.patience < 0 || f.interval < 0:
		return usagef("--patience and --progress take no negative time")
	case (f.certFile == "") != (f.keyFile == ""):
		return usagef("--redis-cert-file and --redis-key-file belong together (give both)")
	case !f.tls && f.caFile+f.certFile != "":
		return usagef("--redis-ca-file and --redis-cert-file are for TLS (add --redis-tls)")
	}
	return nil
}

// importRedis copies, reports, and fails if state is missing.
func (m *Main) importRedis(ctx context.Context, client *stateClient, store string, f importFlags, asJSON bool) (err error) {
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
		return &fault.Error{Code: fault.Internal, Op: "cli.import", Msg: fmt.Sprintf("state is missing: %d of the application's keys were not copied", report.Lost()),
			Hint: "the summary names them, --skipped-file lists all"}
	}
	return err
}

// prepareImport asks the node whether it can take anything, and turns flags into an import.
func (m *Main) prepareImport(ctx context.Context, client *stateClient, store string, f *importFlags) (i redisimport.Import, err error) {
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
		DryRun: f.dry, Overwrite: f.overwrite, Batch: f.batch, Bytes: batchBytes, MaxValue: node.MaxEntry, Workers: f.workers,
		Pause: patience(f.patience),
	}
	if f.interval > 0 {
		i.Progress = func(now func() redisimport.Report) func() { return m.importProgress(f.interval, now) }
	}
	return i, nil
}

// readyFor makes sure that the node has the store and is ready; it returns whose API it is.
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

// redisPassword takes the password from the file or the environment.
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
		return "", usagef("%s is no file with a password (it has to hold one line)", file)
	}
	return password, nil
}

// tlsConfig is nil without TLS.
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
			return nil, usagef("%s holds no certificate (it has to be PEM)", f.caFile)
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
	return &fault.Error{Code: fault.Invalid, Op: "cli.import", Key: path, Msg: "the file " + path + " cannot be used", Err: rootPath(err)}
}

// importProgress prints a line at each interval until it is stopped.
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

// progressLine tells how far an import is.
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
		fmt.Fprintf(w, "That is not all: %d of about %d keys were looked at. Run the command again, it goes on.\n", r.Seen, r.Estimate)
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

// examples names a few keys; those that are missing with what happened.
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
