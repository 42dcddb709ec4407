package statecmd

import (
	"cmp"
	"context"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/statecopy"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

func (m *commands) importCommand() *cobra.Command {
	c := &cobra.Command{Use: "import", Short: "Copy state from another system into a store",
		Args: cobra.ArbitraryArgs, RunE: command.Group}
	c.AddCommand(m.importRedisCommand())
	return c
}

// importFlags are the flags of import redis.
type importFlags struct {
	copyFlags
	address, username, passwordFile string
	sentinelMaster                  string
	db                              int
	cluster, tls                    bool
	caFile, certFile, keyFile       string
	prefix                          string
	from                            state.Owner
}

func (m *commands) importRedisCommand() *cobra.Command {
	f, out := importFlags{copyFlags: copyFlags{api: command.APIFlags{Shell: m.Shell}}}, command.Output{}
	c := &cobra.Command{
		Use:   "redis store [flags]",
		Short: "Copy the state that Dapr keeps in Redis, or compare it",
		Long: "Copy the state of one application from a Redis state store of Dapr into a store of Quorate,\n" +
			"through the HTTP API of the application's node. This is state copy for a Redis that no node\n" +
			"has as a component. The command only reads from Redis. The node determines the application:\n" +
			"run the command once per application.\n\n" + copyRules +
			"The password of Redis comes from REDIS_PASSWORD or --redis-password-file, never from a flag.",
		Example: "  quorate import redis statestore --dry-run\n" +
			"  quorate import redis statestore --redis-address redis.example:6379 --redis-tls\n" +
			"  quorate import redis statestore --key-prefix name --from-store redisstore --skipped-file skipped.jsonl",
		Args: cobra.ExactArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return f.with(c, func(ctx context.Context, client *stateClient) error {
			return m.importRedis(ctx, client, args[0], f, out.JSON())
		})
	}
	f.bind(c)
	out.Bind(c)
	return c
}

func (f *importFlags) bind(c *cobra.Command) {
	f.copyFlags.bind(c)
	fl := c.Flags()
	fl.StringVar(&f.address, "redis-address", "127.0.0.1:6379",
		"`address` of the Redis server; several, separated by commas, of sentinels and of a cluster")
	fl.StringVar(&f.username, "redis-username", "", "`name` of the Redis user; empty = the default user")
	fl.StringVar(&f.passwordFile, "redis-password-file", "", "`file` with the password; wins over REDIS_PASSWORD")
	fl.IntVar(&f.db, "redis-db", 0, "`number` of the database")
	fl.BoolVar(&f.cluster, "redis-cluster", false, "it is a Redis Cluster")
	fl.StringVar(&f.sentinelMaster, "redis-sentinel-master", "", "`name` of the master at the sentinels")
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
}

// importRedis opens the Redis in this process and copies the state of the application.
func (m *commands) importRedis(ctx context.Context, client *stateClient, store string, f importFlags,
	asJSON bool) error {
	app, err := readyFor(ctx, client, store)
	if err != nil {
		return err
	}
	f.from.App, f.from.Store = cmp.Or(f.from.App, app), cmp.Or(f.from.Store, store)
	prefix, err := keyPrefix(f.prefix, f.from)
	if err != nil {
		return err
	}
	metadata, err := f.metadata(m)
	if err != nil {
		return err
	}
	opened, err := redis.Open(ctx, redis.Options{Metadata: metadata, Logger: command.NewLogger(m.Stderr, node.Log{})})
	if err != nil {
		return inFlags(err)
	}
	defer func() { _ = opened.Close() }() // it was only read
	from, err := statecopy.NewOpened(opened, prefix, f.from)
	if err != nil {
		return err
	}
	return inFlags(m.copyState(ctx, f.copyFlags, statecopy.Copy{App: f.from.App, FromName: "Redis at " + f.address,
		ToName: store, From: from, To: copyStore{client, store}}, from.Others, asJSON))
}

// metadata returns the flags as metadata of a component.
func (f *importFlags) metadata(m *commands) (component.Values, error) {
	password, err := f.password(m)
	set := component.Metadata{{Name: "redisHost", Value: f.address},
		{Name: "readTimeout", Value: f.api.Timeout.String()}, {Name: "dialTimeout", Value: f.api.Timeout.String()}}
	add := func(name, value string) {
		if value != "" {
			set = append(set, component.Property{Name: name, Value: value})
		}
	}
	add("redisUsername", f.username)
	add("redisPassword", password)
	if f.db != 0 {
		add("redisDB", strconv.Itoa(f.db))
	}
	if f.cluster {
		add("redisType", "cluster")
	}
	if f.sentinelMaster != "" {
		add("failover", "true")
		add("sentinelMasterName", f.sentinelMaster)
	}
	if f.tls {
		add("enableTLS", "true")
	}
	for _, of := range []struct{ name, file string }{
		{"caCert", f.caFile}, {"clientCert", f.certFile}, {"clientKey", f.keyFile},
	} {
		if of.file == "" || err != nil {
			continue
		}
		var text []byte
		if text, err = os.ReadFile(of.file); err != nil {
			err = copyFileError(of.file, err)
		} else if len(text) == 0 {
			err = command.Usagef("the file %s is empty (it must be PEM)", of.file)
		}
		add(of.name, string(text))
	}
	if err != nil {
		return component.Values{}, err
	}
	values, _, err := set.Check(component.Pos{}, "redis", redis.Fields())
	return values, command.Usage(inFlags(err))
}

// password returns the password from the file or the environment.
func (f *importFlags) password(m *commands) (string, error) {
	if f.passwordFile == "" {
		return m.Getenv("REDIS_PASSWORD"), nil
	}
	text, err := os.ReadFile(f.passwordFile)
	if err != nil {
		return "", copyFileError(f.passwordFile, err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" || strings.ContainsAny(password, "\r\n") {
		return "", command.Usagef("%s is not a password file (it must contain exactly one line)", f.passwordFile)
	}
	return password, nil
}

// inFlags replaces the names of metadata in an error by those of flags.
func inFlags(err error) error {
	e, ok := fault.As(err)
	if !ok {
		return err
	}
	flags := strings.NewReplacer("redisHost", "--redis-address", "redisUsername", "--redis-username",
		"redisPassword", "REDIS_PASSWORD or --redis-password-file", "redisDB", "--redis-db",
		`redisType: "cluster"`, "--redis-cluster", `redisType: "node"`, "no --redis-cluster",
		"redisType", "--redis-cluster", "sentinelMasterName", "--redis-sentinel-master",
		"failover with Sentinel", "--redis-sentinel-master", `enableTLS: "true"`, "--redis-tls",
		"enableTLS", "--redis-tls", "caCert", "--redis-ca-file", "clientCert", "--redis-cert-file",
		"clientKey", "--redis-key-file")
	changed := *e
	changed.Msg, changed.Hint = flags.Replace(e.Msg), flags.Replace(e.Hint)
	return &changed
}

// keyPrefix parses the keyPrefix setting of a Dapr Redis component.
func keyPrefix(text string, owner state.Owner) (state.KeyPrefix, error) {
	p, err := state.ParseKeyPrefix(text)
	if err == nil && p.String() == state.KeyPrefixNamespace && owner.Namespace == "" {
		err = command.Usagef("--key-prefix namespace needs --from-namespace, the namespace of the application in Dapr")
	}
	return p, command.Usage(err)
}
