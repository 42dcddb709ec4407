package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/frames"
	"github.com/quorate/quorate/internal/rest"
)

// Fields returns the metadata fields of the component type. A field that also exists in Dapr has the same name and
// default as in Dapr.
func Fields() []component.Field {
	return []component.Field{
		{Name: "redisHost", Required: true},
		{Name: "redisPort", Kind: component.Int, Check: number(1, math.MaxUint16)},
		{Name: "redisUsername"},
		{Name: "redisPassword", Secret: true},
		{Name: "redisDB", Kind: component.Int, Check: number(0, math.MaxInt32)},
		{Name: "redisType", Default: "node", Check: oneOf("node", "cluster")},
		{Name: "failover", Kind: component.Bool},
		{Name: "sentinelMasterName"},
		{Name: "sentinelUsername"},
		{Name: "sentinelPassword", Secret: true},
		{Name: "clusterHashTags", Kind: component.Bool},
		{Name: "replicas", Kind: component.Int, Check: number(0, 1000)},
		{Name: "replicaTimeout", Default: "1s", Check: checkInterval},
		{Name: "enableTLS", Kind: component.Bool, Security: true},
		{Name: "caCert", Security: true},
		{Name: "clientCert", Security: true},
		{Name: "clientKey", Secret: true, Security: true},
		{Name: "insecureSkipTLSVerify", Kind: component.Bool},
		{Name: "ttlInSeconds", Kind: component.Int, Check: number(-1, math.MaxInt32)},
		{Name: "redisMaxRetries", Kind: component.Int, Default: "3", Aliases: []string{"maxRetries"},
			Check: number(-1, 1000)},
		{Name: "redisMinRetryInterval", Default: "8ms", Check: checkInterval},
		{Name: "redisMaxRetryInterval", Default: "2s", Aliases: []string{"maxRetryBackoff"}, Check: checkInterval},
		{Name: "dialTimeout", Default: "5s", Check: checkInterval},
		{Name: "readTimeout", Default: "3s", Check: checkInterval},
		{Name: "writeTimeout", Check: checkInterval},
		{Name: "poolSize", Kind: component.Int, Check: number(0, math.MaxInt32)},
		{Name: "minIdleConns", Kind: component.Int, Check: number(0, math.MaxInt32)},
		{Name: "poolTimeout", Check: checkInterval},
		{Name: "idleTimeout", Default: "5m", Check: checkInterval},
		{Name: "maxConnAge", Check: checkInterval},
		{Name: "useEntraID", Aliases: []string{"useAzureAD"},
			Refused: "signing in with Microsoft Entra ID is not supported; use redisUsername and redisPassword"},
		{Name: "useOIDC", Refused: "signing in with OIDC is not supported; use redisUsername and redisPassword"},
		{Name: "queryIndexes", Refused: "the query API is not supported"},
	}
}

// kind is how Redis is deployed.
type kind uint8

const (
	single kind = iota
	sentinel
	cluster
)

// settings are the checked metadata.
type settings struct {
	addresses          []string
	username, password string
	db                 int
	kind               kind
	master             string // name of the master at the sentinels
	sentinelUsername   string
	sentinelPassword   string
	hashTags           bool
	replicas           int
	replicaTimeout     time.Duration
	tls                *tls.Config // nil = plain TCP
	unverified         bool
	ttl                int64 // seconds; 0 or less = none
	retries            int
	minPause, maxPause time.Duration
	longest            int64 // the largest value in bytes that is read

	dial, read, write, pool, idle, age time.Duration
	poolSize, minIdle                  int
}

func read(m component.Values) (settings, error) {
	s := settings{
		username: m.Text("redisUsername"), password: m.Text("redisPassword"), db: int(m.Int("redisDB")),
		master: m.Text("sentinelMasterName"), sentinelUsername: m.Text("sentinelUsername"),
		sentinelPassword: m.Text("sentinelPassword"), hashTags: m.Bool("clusterHashTags"),
		replicas: int(m.Int("replicas")), replicaTimeout: interval(m, "replicaTimeout"), ttl: m.Int("ttlInSeconds"),
		retries: int(max(m.Int("redisMaxRetries"), 0)), minPause: max(interval(m, "redisMinRetryInterval"), 0),
		maxPause: max(interval(m, "redisMaxRetryInterval"), 0),
		dial:     interval(m, "dialTimeout"), read: interval(m, "readTimeout"), write: interval(m, "writeTimeout"),
		pool: interval(m, "poolTimeout"), idle: interval(m, "idleTimeout"), age: interval(m, "maxConnAge"),
		poolSize: int(m.Int("poolSize")), minIdle: int(m.Int("minIdleConns")),
		unverified: m.Bool("insecureSkipTLSVerify"),
	}
	switch {
	case m.Bool("failover"):
		s.kind = sentinel
	case strings.EqualFold(m.Text("redisType"), "cluster"):
		s.kind = cluster
	}
	if err := s.contradiction(m); err != nil {
		return settings{}, err
	}
	var err error
	if s.addresses, err = addresses(m.Text("redisHost"), int(m.Int("redisPort"))); err != nil {
		return settings{}, err
	}
	if s.kind == single && len(s.addresses) > 1 {
		return settings{}, invalid("redisHost has several addresses",
			"set redisType: cluster, or failover with Sentinel")
	}
	s.tls, err = encrypted(m)
	return s, err
}

func (s settings) contradiction(m component.Values) error {
	switch {
	case s.kind == sentinel && s.master == "":
		return invalid("failover needs sentinelMasterName", "set it to the name of the master at the sentinels")
	case s.kind != sentinel && s.master != "":
		return invalid("sentinelMasterName is set without failover", `set failover: "true"`)
	case s.kind == sentinel && strings.EqualFold(m.Text("redisType"), "cluster"):
		return invalid("failover is set with redisType cluster", "a Redis Cluster fails over by itself: omit failover")
	case s.kind == cluster && s.db != 0:
		return invalid("redisDB is set with redisType cluster", "a Redis Cluster has one database: omit redisDB")
	case s.hashTags && s.kind != cluster:
		return invalid("clusterHashTags is set without redisType cluster", "omit it")
	case s.username != "" && s.password == "":
		return invalid("redisUsername is set without redisPassword", "give the password of the user")
	case s.replicas > 0 && s.read > 0 && s.replicaTimeout >= s.read:
		return invalid("replicaTimeout is not below readTimeout", "lower replicaTimeout, or raise readTimeout")
	case s.replicas > 0 && s.replicaTimeout < time.Millisecond:
		return invalid("replicaTimeout is not positive", "give the time that replicas have, such as 1s")
	}
	return nil
}

// addresses splits redisHost at commas. It adds a port to each address without one: the given port, or 6379 if the
// given port is 0. It returns fault.Invalid if an address is empty or contradicts the given port.
func addresses(hosts string, port int) ([]string, error) {
	var out []string
	for host := range strings.SplitSeq(hosts, ",") {
		host = strings.TrimSpace(host)
		if host == "" {
			return nil, invalid("redisHost has an empty address", "give it as host:port")
		}
		if _, of, err := net.SplitHostPort(host); err == nil {
			if port != 0 && of != strconv.Itoa(port) {
				return nil, invalid("redisHost and redisPort name different ports", "omit redisPort")
			}
			out = append(out, host)
			continue
		}
		of := port
		if of == 0 {
			of = 6379
		}
		out = append(out, net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(of)))
	}
	return out, nil
}

// encrypted returns the TLS configuration, or nil if enableTLS is not set.
func encrypted(m component.Values) (*tls.Config, error) {
	own := m.Text("clientCert") != "" || m.Text("clientKey") != ""
	if !m.Bool("enableTLS") {
		if own || m.Text("caCert") != "" || m.Bool("insecureSkipTLSVerify") {
			return nil, invalid("certificates are given without enableTLS", `set enableTLS: "true"`)
		}
		return nil, nil
	}
	config := rest.TLS(nil)
	config.InsecureSkipVerify = m.Bool("insecureSkipTLSVerify")
	if text := m.Text("caCert"); text != "" {
		pool, err := rest.Authorities("caCert", []byte(text))
		if err != nil {
			return nil, err
		}
		config.RootCAs = pool
	}
	if !own {
		return config, nil
	}
	pair, err := tls.X509KeyPair([]byte(m.Text("clientCert")), []byte(m.Text("clientKey")))
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "redis.Open", Msg: "clientCert and clientKey are not a pair",
			Hint: "give both in PEM form", Err: err}
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

func (s settings) warn(log *slog.Logger) {
	switch {
	case s.unverified:
		log.Warn("insecureSkipTLSVerify: anyone between this node and Redis can read and change the data")
	case s.password != "" && s.tls == nil && !local(s.addresses):
		log.Warn("the password and the data can be read in transit", "hint", "set enableTLS")
	}
}

// local reports whether all addresses are this host.
func local(addresses []string) bool {
	for _, address := range addresses {
		host, _, _ := net.SplitHostPort(address)
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}

// dialer returns a function that connects to a server. The connection checks the size of each reply before the library
// reads it. Otherwise a hostile server could exhaust the memory, because the library allocates as much memory as a
// reply announces.
func (s settings) dialer() func(ctx context.Context, network, address string) (net.Conn, error) {
	plain := &net.Dialer{Timeout: max(s.dial, 0), KeepAliveConfig: net.KeepAliveConfig{Enable: true,
		Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}}
	dial := plain.DialContext
	if s.tls != nil {
		dial = (&tls.Dialer{NetDialer: plain, Config: s.tls}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return frames.Wrap(conn, frames.NewRESP(s.longest)), nil
	}
}

// client creates a client of the Redis library. The client connects at its first command. The library may retry a
// failed command, unless the command has the type "once".
func (s settings) client() goredis.UniversalClient {
	const oneTry = 1 // attempts to connect; a retry of a command connects again
	o := goredis.Options{
		Username: s.username, Password: s.password, DB: s.db, Dialer: s.dialer(), Protocol: 2,
		MaxRetries: disabled(s.retries), MinRetryBackoff: s.minPause, MaxRetryBackoff: s.maxPause,
		DialTimeout: s.dial, DialerRetries: oneTry, ReadTimeout: s.read, WriteTimeout: s.write,
		ContextTimeoutEnabled: true, PoolSize: s.poolSize, PoolTimeout: s.pool, MinIdleConns: s.minIdle,
		ConnMaxIdleTime: s.idle, ConnMaxLifetime: s.age, PipelinePoolSize: -1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	switch s.kind {
	case sentinel:
		return goredis.NewFailoverClient(&goredis.FailoverOptions{
			MasterName: s.master, SentinelAddrs: s.addresses, SentinelUsername: s.sentinelUsername,
			SentinelPassword: s.sentinelPassword, Username: o.Username, Password: o.Password, DB: o.DB,
			Dialer: o.Dialer, Protocol: o.Protocol, MaxRetries: o.MaxRetries, MinRetryBackoff: o.MinRetryBackoff,
			MaxRetryBackoff: o.MaxRetryBackoff, DialTimeout: o.DialTimeout, DialerRetries: o.DialerRetries,
			ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout, ContextTimeoutEnabled: true, PoolSize: o.PoolSize,
			PoolTimeout: o.PoolTimeout, MinIdleConns: o.MinIdleConns, ConnMaxIdleTime: o.ConnMaxIdleTime,
			ConnMaxLifetime: o.ConnMaxLifetime, PipelinePoolSize: o.PipelinePoolSize, DisableIdentity: true,
		})
	case cluster:
		return goredis.NewClusterClient(&goredis.ClusterOptions{
			Addrs: s.addresses, Username: o.Username, Password: o.Password, Dialer: o.Dialer,
			Protocol:   o.Protocol,
			MaxRetries: o.MaxRetries, MinRetryBackoff: o.MinRetryBackoff, MaxRetryBackoff: o.MaxRetryBackoff,
			DialTimeout: o.DialTimeout, DialerRetries: o.DialerRetries, ReadTimeout: o.ReadTimeout,
			WriteTimeout: o.WriteTimeout, ContextTimeoutEnabled: true, PoolSize: o.PoolSize, PoolTimeout: o.PoolTimeout,
			MinIdleConns: o.MinIdleConns, ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime,
			PipelinePoolSize: o.PipelinePoolSize, DisableIdentity: true, DisableRoutingPolicies: true,
			MaintNotificationsConfig: o.MaintNotificationsConfig,
		})
	}
	o.Addr = s.addresses[0]
	return goredis.NewClient(&o)
}

// disabled converts a number of retries to the client's option MaxRetries. It returns -1 for a number of 0 or less,
// which disables retries. The client would replace 0 with its default.
func disabled(n int) int {
	if n <= 0 {
		return -1
	}
	return n
}

// silent is a logger for the client library that drops all messages.
type silent struct{}

// Printf drops the message.
func (silent) Printf(context.Context, string, ...any) {}

// ParseInterval parses a duration as Dapr does. A whole number is in milliseconds. A negative whole number disables the
// timeout or interval, and the result is then -1.
func ParseInterval(text string) (time.Duration, error) {
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		if n < 0 {
			return -1, nil
		}
		return time.Duration(n) * time.Millisecond, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, errors.New("is neither a duration such as 500ms or 5s, nor milliseconds, nor -1")
	}
	return d, nil
}

func checkInterval(text string) error {
	_, err := ParseInterval(text)
	return err
}

// interval returns the duration in the metadata field with the given name. The field must have passed checkInterval.
func interval(m component.Values, name string) time.Duration {
	d, _ := ParseInterval(m.Text(name))
	return d
}

func number(least, most int64) func(string) error {
	return func(text string) error {
		if n, err := strconv.ParseInt(text, 10, 64); err != nil || n < least || n > most {
			return fmt.Errorf("is not a whole number from %d to %d", least, most)
		}
		return nil
	}
}

func oneOf(words ...string) func(string) error {
	return func(text string) error {
		for _, word := range words {
			if strings.EqualFold(word, text) {
				return nil
			}
		}
		return errors.New("is none of " + strings.Join(words, ", "))
	}
}

func invalid(msg, hint string) error {
	return &fault.Error{Code: fault.Invalid, Op: "redis.Open", Msg: msg, Hint: hint}
}
