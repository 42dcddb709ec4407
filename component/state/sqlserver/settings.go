package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	mssql "github.com/microsoft/go-mssqldb"
	"github.com/microsoft/go-mssqldb/msdsn"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
)

// Fields returns the metadata fields of one version of the component type, except the Microsoft Entra ID fields.
// Names and defaults are the same as in Dapr.
func Fields(version Version) []component.Field {
	chunk := component.Field{Name: "bulkGetChunkSize", Refused: "it belongs to version v2"}
	if version == V2 {
		chunk = component.Field{Name: "bulkGetChunkSize", Kind: component.Int,
			Check: outside.Number(math.MinInt32, math.MaxInt32)}
	}
	return []component.Field{
		{Name: "connectionString", Aliases: []string{"url"}, Required: true, Secret: true},
		{Name: "databaseName", Aliases: []string{"database"}, Default: "dapr", Check: checkName},
		{Name: "schemaName", Aliases: []string{"schema"}, Default: "dbo", Check: checkName},
		{Name: "tableName", Default: defaultTable, Check: checkName},
		{Name: "metadataTableName", Default: "dapr_metadata", Check: checkName},
		{Name: "keyType", Default: keyText, Check: checkKeyType},
		{Name: "keyLength", Kind: component.Int, Default: "200", Check: outside.Number(1, 850)},
		{Name: "indexedProperties", Check: checkIndexed},
		{Name: "cleanupInterval", Aliases: []string{"cleanupIntervalInSeconds"}, Default: "1h",
			Check: outside.CheckInterval},
		chunk,
		{Name: "useAzureAD", Kind: component.Bool},
	}
}

// defaultTable is the default of tableName.
const defaultTable = "state"

// Types of keys.
const (
	keyText    = "string"
	keyUUID    = "uuid"
	keyInteger = "integer"
)

// settings are the checked metadata.
type settings struct {
	client   msdsn.Config
	entra    bool
	database string // name of the database
	create   bool   // Open creates the database, because the connection string names none
	schema   string
	table    string
	metadata string
	keyType  string
	length   int // longest key for keyText, in UTF-16 code units
	rowName  int // longest key of the metadata table, in UTF-16 code units
	indexed  []property
	cleanup  time.Duration // 0 or less = expired rows are not removed
	chunk    int           // most keys of a bulk read; 0 = no limit
}

// property is a property of JSON values that has an indexed column.
type property struct {
	Column   string `json:"column"`
	Property string `json:"property"`
	Type     string `json:"type"`
}

func read(m component.Values, version Version) (settings, error) {
	s := settings{schema: m.Text("schemaName"), table: m.Text("tableName"), metadata: m.Text("metadataTableName"),
		keyType: m.Text("keyType"), length: int(m.Int("keyLength")), cleanup: outside.Interval(m, "cleanupInterval"),
		entra: m.Bool("useAzureAD")}
	if version == V2 {
		s.chunk = max(int(m.Int("bulkGetChunkSize")), 0)
	}
	var err error
	if s.indexed, err = indexed(m.Text("indexedProperties")); err != nil {
		return s, invalid("indexedProperties "+err.Error(), "")
	}
	if s.client, err = msdsn.Parse(m.Text("connectionString")); err != nil {
		// The cause may show the password.
		return s, invalid("connectionString cannot be read", "write it as server=db.example.com;user id=shop;"+
			"password=...;database=orders, or as sqlserver://shop:...@db.example.com:1433?database=orders")
	}
	s.database, s.create = cmp.Or(s.client.Database, m.Text("databaseName")), s.client.Database == ""
	if s.client.ConnTimeout == 0 {
		s.client.ConnTimeout = timeout // limit for each read and write of a connection, also during Open
	}
	if name := s.client.AppName; name == "" || name == "go-mssqldb" {
		s.client.AppName = "quorate"
	}
	return s, nil
}

// connector returns a connector that opens connections to a database. If database is empty, SQL Server selects the
// user's default database.
func (s *Store) connector(database string) (*mssql.Connector, error) {
	config, d := check(s.settings.client, s.longest)
	config.Database = database
	if s.identity == nil {
		connector := mssql.NewConnectorConfig(config)
		connector.Dialer = d
		return connector, nil
	}
	connector, err := mssql.NewSecurityTokenConnector(config, func(ctx context.Context) (string, error) {
		token, err := s.identity.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{s.scope}})
		if err != nil {
			return "", fault.Wrap(entra.Failure(ctx, "Entra ID", err), "sqlserver.Open", "signing in to SQL Server")
		}
		return token.Token, nil
	})
	if err != nil {
		return nil, invalid("the client of SQL Server cannot be made: "+err.Error(), "")
	}
	connector.Dialer = d
	return connector, nil
}

// scope returns the scope of tokens for Azure SQL.
func scope(identity entra.Settings) string {
	switch environment := strings.ToLower(identity.Environment); {
	case strings.Contains(environment, "china"):
		return "https://database.chinacloudapi.cn/.default"
	case strings.Contains(environment, "government"):
		return "https://database.usgovcloudapi.net/.default"
	}
	return "https://database.windows.net/.default"
}

// pool returns a pool of connections. The pool connects at its first use.
func pool(connector *mssql.Connector) *sql.DB {
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	db.SetConnMaxIdleTime(maxIdle)
	return db
}

// where returns the address and the database, for messages.
func (s settings) where() string {
	host := s.client.Host
	if s.client.Instance != "" {
		host += `\` + s.client.Instance
	}
	if s.client.Port != 0 {
		host += ":" + strconv.FormatUint(s.client.Port, 10)
	}
	return host + ", database " + strconv.Quote(s.database)
}

// full returns the name of a table for SQL statements, with the schema.
func (s settings) full(table string) string { return "[" + s.schema + "].[" + table + "]" }

// checkName returns an error unless text has 1 to 100 bytes and only letters, digits and underscores, as in Dapr. The
// check prevents SQL injection, because statements contain the name.
func checkName(text string) error {
	for _, c := range text {
		if !unicode.IsLetter(c) && !unicode.IsNumber(c) && c != '_' {
			return errors.New("is not a name of letters, digits and _")
		}
	}
	if text == "" || len(text) > 100 {
		return errors.New("is not a name of 1 to 100 letters, digits and _")
	}
	return nil
}

func checkKeyType(text string) error {
	switch text {
	case "", keyText, keyUUID, keyInteger:
		return nil
	}
	return errors.New("is none of string, uuid, integer")
}

func checkIndexed(text string) error {
	_, err := indexed(text)
	return err
}

// indexed parses the setting indexedProperties. It accepts only certain characters, to prevent SQL injection:
// statements contain the names and types of the properties.
func indexed(text string) ([]property, error) {
	if text == "" {
		return nil, nil
	}
	var all []property
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, errors.New(`is not JSON such as [{"column": "customer", "property": "customer.id", "type": "int"}]`)
	}
	path := regexp.MustCompile(`^[\p{L}\p{N}_.\[\]]+$`)
	kind := regexp.MustCompile(`^[\p{L}\p{N}]+(\([\p{L}\p{N}, ]+\))?$`)
	for _, p := range all {
		switch {
		case checkName(p.Column) != nil:
			return nil, errors.New("has a column whose name is not of letters, digits and _")
		case !path.MatchString(p.Property):
			return nil, errors.New("has a property that is not of letters, digits, _, ., [ and ]")
		case !kind.MatchString(p.Type):
			return nil, errors.New("has a type that is not one such as int or nvarchar(100)")
		}
	}
	return all, nil
}

func invalid(msg, hint string) error {
	return &fault.Error{Code: fault.Invalid, Op: "sqlserver.Open", Msg: msg, Hint: hint}
}
