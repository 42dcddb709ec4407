package postgresql

import (
	"context"
	"errors"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/frames"
	"github.com/quorate/quorate/internal/userfile"
)

// defaultTable is the default of tableName.
const defaultTable = "state"

// Fields returns the metadata fields of one version of the component type. Names and defaults are the same as in
// Dapr.
func Fields(version Version) []component.Field {
	name := component.Field{Name: "tableName", Default: defaultTable, Check: CheckTable}
	prefix := component.Field{Name: "tablePrefix", Refused: "it belongs to version v2; v1 has tableName"}
	if version == V2 {
		name = component.Field{Name: "tableName", Refused: "it belongs to version v1; v2 has tablePrefix"}
		prefix = component.Field{Name: "tablePrefix", Check: checkPrefix}
	}
	return append(ClientFields(),
		name,
		prefix,
		component.Field{Name: "metadataTableName", Default: "dapr_metadata", Check: CheckTable},
		component.Field{Name: "cleanupInterval", Default: "1h", Aliases: []string{"cleanupIntervalInSeconds"},
			Check: outside.CheckInterval},
	)
}

// ClientFields returns the metadata fields of a Client.
func ClientFields() []component.Field {
	return []component.Field{
		{Name: "connectionString", Aliases: []string{"url"}, Secret: true},
		{Name: "host"},
		{Name: "port", Kind: component.Int, Check: outside.Number(1, math.MaxUint16)},
		{Name: "user"},
		{Name: "password", Secret: true},
		{Name: "database"},
		{Name: "sslRootCert", Security: true},
		{Name: "timeout", Default: "20s", Aliases: []string{"timeoutInSeconds"}, Check: outside.CheckTimeout},
		{Name: "maxConns", Kind: component.Int, Check: outside.Number(0, math.MaxInt32)},
		{Name: "connectionMaxIdleTime", Check: outside.CheckInterval},
		{Name: "queryExecMode", Check: checkExecMode},
		{Name: "useAzureAD", Refused: "signing in with Microsoft Entra ID is not supported; use a password"},
		{Name: "useAWSIAM", Refused: "signing in with AWS IAM is not supported; use a password"},
	}
}

// settings are the checked metadata.
type settings struct {
	pool     *pgxpool.Config
	table    string
	metadata string
	prefix   string // prefix of table names in v2
	timeout  time.Duration
	cleanup  time.Duration // 0 or less = expired rows are not removed
}

func read(m component.Values, version Version) (settings, error) {
	s, err := readConnection(m)
	s.metadata, s.cleanup = m.Text("metadataTableName"), outside.Interval(m, "cleanupInterval")
	if version == V2 {
		s.prefix = m.Text("tablePrefix")
		s.table = s.prefix + "state"
	} else {
		s.table = m.Text("tableName")
	}
	return s, err
}

// readConnection reads ClientFields.
func readConnection(m component.Values) (settings, error) {
	s := settings{timeout: outside.Interval(m, "timeout")}
	text, err := connection(m)
	if err != nil {
		return s, err
	}
	if file := m.Text("sslRootCert"); file != "" {
		if _, err := userfile.Read(file); err != nil {
			return s, &fault.Error{Code: fault.Invalid, Op: "postgresql.Open", Key: "sslRootCert", Err: err,
				Msg: "the file of sslRootCert cannot be read", Hint: "give the path of a PEM file with the authority"}
		}
	}
	if s.pool, err = pgxpool.ParseConfig(text); err != nil {
		// The cause may show the password.
		return s, invalid("connectionString cannot be read",
			"write it as host=... user=... password=... dbname=..., or as postgres://user:password@host:5432/database")
	}
	if d := outside.Interval(m, "connectionMaxIdleTime"); d > 0 {
		s.pool.MaxConnIdleTime = d
	}
	if n := m.Int("maxConns"); n > 0 {
		s.pool.MaxConns = int32(n) //nolint:gosec // checked
	}
	if mode, ok := execModes()[m.Text("queryExecMode")]; ok {
		s.pool.ConnConfig.DefaultQueryExecMode = mode
	}
	if _, given := s.pool.ConnConfig.RuntimeParams["application_name"]; !given {
		s.pool.ConnConfig.RuntimeParams["application_name"] = "quorate"
	}
	return s, nil
}

// bound makes connections check the messages of the server before the client library reads them. Otherwise the library
// would allocate memory for every length that the server announces. maxValue is the maximum size of a value in bytes.
// Messages may have twice this size, because v1 needs more space for some values. Set listens for a connection that
// receives notifications.
func bound(c *pgx.ConnConfig, maxValue int64, listens bool) {
	c.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
		return frames.Wrap(conn, frames.NewPostgreSQL(2*maxValue, listens)), nil
	}
}

// connection returns the connection string for PostgreSQL. It consists of the field connectionString and the values of
// other fields, such as host and user.
func connection(m component.Values) (string, error) {
	text := m.Text("connectionString")
	var parts []string
	for field, keyword := range map[string]string{"host": "host", "port": "port", "user": "user",
		"password": "password", "database": "dbname", "sslRootCert": "sslrootcert"} {
		if value := m.Text(field); value != "" {
			escaped := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value)
			parts = append(parts, keyword+"='"+escaped+"'")
		}
	}
	switch {
	case text == "" && len(parts) == 0:
		return "", invalid("connectionString is missing", "give it, or host, user, password and database")
	case len(parts) > 0 && strings.Contains(text, "://"):
		return "", invalid("connectionString is a URL, and other fields repeat parts of it",
			"put host, port, user, password, database and sslRootCert into connectionString, or omit it")
	}
	return strings.TrimSpace(text + " " + strings.Join(parts, " ")), nil
}

// where returns the address of the server and the database, for messages.
func (s settings) where() string {
	c := s.pool.ConnConfig
	return c.Host + ":" + strconv.Itoa(int(c.Port)) + ", database " + strconv.Quote(c.Database)
}

func execModes() map[string]pgx.QueryExecMode {
	return map[string]pgx.QueryExecMode{
		"cache_statement": pgx.QueryExecModeCacheStatement,
		"cache_describe":  pgx.QueryExecModeCacheDescribe,
		"describe_exec":   pgx.QueryExecModeDescribeExec,
		"exec":            pgx.QueryExecModeExec,
		"simple_protocol": pgx.QueryExecModeSimpleProtocol,
	}
}

func checkExecMode(text string) error {
	if _, ok := execModes()[text]; !ok && text != "" {
		return errors.New("is none of cache_statement, cache_describe, describe_exec, exec, simple_protocol")
	}
	return nil
}

// CheckTable returns an error unless text is a table name that needs no quotes. Statements contain the name unquoted,
// as with Dapr, so PostgreSQL converts it to lower case.
func CheckTable(text string) error {
	if !regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$`).MatchString(text) {
		return errors.New("is not the name of a table, such as state or app.state: letters, digits and _")
	}
	return nil
}

func checkPrefix(text string) error {
	if CheckTable(text+"state") != nil {
		return errors.New("does not begin the name of a table, such as dapr_ or app.: letters, digits and _")
	}
	return nil
}

func invalid(msg, hint string) error {
	return &fault.Error{Code: fault.Invalid, Op: "postgresql.Open", Msg: msg, Hint: hint}
}
