package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/quorate/quorate/internal/fault"
)

// createDatabase creates the database if it does not exist. As in Dapr, it is called only if the connection string
// names no database.
func (s *Store) createDatabase(ctx context.Context) error {
	const op = "sqlserver.Open"
	connector, err := s.connector("")
	if err != nil {
		return err
	}
	db := pool(connector)
	defer db.Close()
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	name := s.settings.database
	_, err = db.ExecContext(bounded, `IF DB_ID(N'`+name+`') IS NULL CREATE DATABASE [`+name+`]`)
	if err != nil && !exists(err) { // another node may have created the database at the same moment
		return s.failed(op, "", err, unsent)
	}
	return nil
}

// column is a column of the table.
type column struct {
	kind      string
	length    int // length of the column in bytes
	collation string
}

// prepare creates the tables, columns and indexes that do not exist. It checks that the table has the layout of
// s.version. It also sets s.sql, the SQL statements for the table.
func (s *Store) prepare(ctx context.Context) error {
	columns, err := s.columns(ctx)
	if err != nil {
		return err
	}
	if len(columns) == 0 || columns["ExpireDate"].kind == "" || !s.hasMetadata(columns) {
		if err = s.create(ctx); err != nil {
			return err
		}
		if columns, err = s.columns(ctx); err != nil {
			return err
		}
	}
	if err = s.check(columns); err != nil {
		return err
	}
	key := columns["Key"]
	if s.settings.keyType == keyText {
		s.settings.length = key.length / 2
		if key.collation != exact {
			s.log.Info("the table compares keys in a way that ignores case or accents, so two such keys cannot both "+
				"be saved, and listings read all rows", "table", s.settings.table, "collation", key.collation)
		}
	}
	s.settings.rowName = columns[metadataColumn].length / 2
	s.sql = newStatements(s.settings, s.version, key.collation)
	return s.index(ctx)
}

// metadataColumn is a special entry in the result of the method columns. It exists if the metadata table exists, and
// has the maximum length of a key in that table. No real column can have this name.
const metadataColumn = "\x00metadata"

// maxColumns is the largest number of columns that SQL Server allows in a table.
const maxColumns = 30_000

func (s *Store) hasMetadata(columns map[string]column) bool {
	return columns[metadataColumn].kind != ""
}

// columns returns the columns of the table by name. The result is empty if the table does not exist.
func (s *Store) columns(ctx context.Context) (map[string]column, error) {
	const statement = `SELECT c.[name], TYPE_NAME(c.[user_type_id]), CONVERT(bigint, c.[max_length]), ` +
		`COALESCE(c.[collation_name], N''), ` +
		`CONVERT(bigint, COALESCE(COL_LENGTH(@Metadata, N'Key'), 0)) ` +
		`FROM sys.columns AS c WHERE c.[object_id] = OBJECT_ID(@Table, 'U')`
	var out map[string]column
	err := s.call(ctx, "sqlserver.Open", "", reading, func(ctx context.Context, conn *sql.Conn, _ *atomic.Bool) error {
		found := map[string]column{}
		rows, err := conn.QueryContext(ctx, statement, sql.Named("Table", s.settings.full(s.settings.table)),
			sql.Named("Metadata", s.settings.full(s.settings.metadata)))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var name string
			var c column
			var metadata int
			if err := rows.Scan(&name, &c.kind, &c.length, &c.collation, &metadata); err != nil {
				return err
			}
			if len(found) > maxColumns {
				return stranger("sqlserver.Open", "")
			}
			found[name] = c
			if metadata > 0 {
				found[metadataColumn] = column{kind: "table", length: metadata}
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		out = found
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// create creates the schema and the tables that do not exist, one node at a time.
func (s *Store) create(ctx context.Context) error {
	const op, attempts = "sqlserver.Open", 10
	for attempt := 1; ; attempt++ {
		err := s.call(ctx, op, "", writing, func(ctx context.Context, conn *sql.Conn, _ *atomic.Bool) error {
			_, err := conn.ExecContext(ctx, s.creation())
			return err
		})
		switch {
		case err == nil:
			return nil
		case exists(err) && attempt < attempts: // Dapr created one at the same moment
			continue
		}
		return &fault.Error{Code: fault.CodeOf(err), Op: op, Msg: "creating the table " + s.settings.table, Err: err}
	}
}

// creation returns the SQL batch that create executes.
func (s *Store) creation() string {
	set := s.settings
	key := map[string]string{keyUUID: "uniqueidentifier", keyInteger: "int",
		keyText: fmt.Sprintf("nvarchar(%d) COLLATE %s", set.length, exact)}[set.keyType]
	values := "\n[Data] nvarchar(max) NOT NULL,"
	if s.version == V2 {
		values = "\n[Data] nvarchar(max) NULL,\n[BinaryData] varbinary(max) NULL,\n[isBinary] bit NOT NULL DEFAULT(0),"
	}
	var computed strings.Builder
	for _, p := range set.indexed {
		fmt.Fprintf(&computed, "\n[%s] AS CONVERT(%s, JSON_VALUE([Data], '$.%s')) PERSISTED,", p.Column, p.Type,
			p.Property)
	}
	return strings.NewReplacer("@schema", set.schema, "@table", set.full(set.table), "@metadata",
		set.full(set.metadata), "@name", set.table, "@other", set.metadata, "@key", key, "@values", values, "@computed",
		computed.String()).Replace(batch + begin + `
EXEC sp_getapplock @Resource = N'quorate @table', @LockMode = N'Exclusive', @LockTimeout = 15000;
IF SCHEMA_ID(N'@schema') IS NULL EXEC(N'CREATE SCHEMA [@schema]');
IF OBJECT_ID(N'@table', N'U') IS NULL CREATE TABLE @table (
[Key] @key CONSTRAINT [PK_@name] PRIMARY KEY,@values
[InsertDate] datetime2 NOT NULL DEFAULT(GETDATE()),
[UpdateDate] datetime2 NULL,
[ExpireDate] datetime2 NULL,@computed
[RowVersion] rowversion NOT NULL);
IF COL_LENGTH(N'@table', N'ExpireDate') IS NULL ALTER TABLE @table ADD [ExpireDate] datetime2 NULL;
IF OBJECT_ID(N'@metadata', N'U') IS NULL CREATE TABLE @metadata (
[Key] nvarchar(200) CONSTRAINT [PK_@other] PRIMARY KEY,
[Value] nvarchar(max) NOT NULL);
` + commit)
}

// check checks that the table has the columns that this version and the settings need.
func (s *Store) check(columns map[string]column) error {
	kind := map[string]string{keyText: "nvarchar", keyUUID: "uniqueidentifier", keyInteger: "int"}[s.settings.keyType]
	want := []string{"Key", "Data", "RowVersion", "ExpireDate", "UpdateDate"}
	if s.version == V2 {
		want = append(want, "BinaryData", "isBinary")
	}
	if _, ofV2 := columns["isBinary"]; ofV2 && s.version == V1 {
		return invalid("the table "+s.settings.table+" is one of version v2",
			"set spec.version to v2, or use another table")
	}
	for _, name := range want {
		if _, ok := columns[name]; !ok {
			return invalid("the table "+s.settings.table+" has no column "+name,
				"set spec.version to the version that wrote the table, or use another table")
		}
	}
	if got := columns["Key"].kind; got != kind {
		return invalid("the keys of the table "+s.settings.table+" have the type "+got+", not "+kind, "correct keyType")
	}
	if c := columns["Key"].collation; s.settings.keyType == keyText &&
		!regexp.MustCompile(`^[A-Za-z0-9_]+$`).MatchString(c) {
		return invalid("the column of keys has no usable collation", "use another table")
	}
	for _, p := range s.settings.indexed {
		if _, ok := columns[p.Column]; !ok {
			return invalid("the table "+s.settings.table+" has no column "+p.Column+" of indexedProperties",
				fmt.Sprintf("run ALTER TABLE %s ADD [%s] AS CONVERT(%s, JSON_VALUE([Data], '$.%s')) PERSISTED",
					s.settings.full(s.settings.table), p.Column, p.Type, p.Property))
		}
	}
	return nil
}

// index creates the indexes of indexedProperties that do not exist.
func (s *Store) index(ctx context.Context) error {
	const op = "sqlserver.Open"
	table := s.settings.full(s.settings.table)
	for _, p := range s.settings.indexed {
		name := "IX_" + p.Column
		err := s.call(ctx, op, "", writing, func(ctx context.Context, conn *sql.Conn, _ *atomic.Bool) error {
			_, err := conn.ExecContext(ctx, `IF NOT EXISTS (SELECT 1 FROM sys.indexes WHERE [object_id] = OBJECT_ID(N'`+
				table+`', N'U') AND [name] = N'`+name+`') CREATE INDEX [`+name+`] ON `+table+` ([`+p.Column+`])`)
			if exists(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return &fault.Error{Code: fault.CodeOf(err), Op: op, Msg: "creating the index " + name, Err: err}
		}
	}
	return nil
}

// claim is the statement with which a node claims the next removal of expired rows. If no node has claimed a removal
// within the interval, the statement writes the current time to the row @row and returns one row. Otherwise it returns
// no row.
const claim = batch + begin + `UPDATE m SET [Value] = CONVERT(nvarchar(max), GETDATE(), 21) OUTPUT 1 ` +
	`FROM @metadata AS m WITH (UPDLOCK, SERIALIZABLE) WHERE m.[Key] = N'@row' AND ` +
	`DATEDIFF_BIG(MILLISECOND, TRY_CONVERT(datetime2, m.[Value], 121), GETDATE()) >= @Interval; ` +
	`IF @@ROWCOUNT = 0 AND NOT EXISTS (SELECT 1 FROM @metadata AS m WITH (UPDLOCK, SERIALIZABLE) ` +
	`WHERE m.[Key] = N'@row') INSERT INTO @metadata ([Key], [Value]) OUTPUT 1 ` +
	`VALUES (N'@row', CONVERT(nvarchar(max), GETDATE(), 21));` + commit

// cleanupKey returns the key of the row that claim writes in the metadata table. Each state table has its own key, so
// that stores that share a metadata table do not prevent each other from removing expired rows. Dapr uses the same key
// for all tables.
func (s settings) cleanupKey() string {
	if s.table == defaultTable {
		return "last-cleanup"
	}
	return "last-cleanup-" + s.table
}

// removeExpired removes expired rows, unless another node has done so within the interval. The nodes coordinate through
// one row in the metadata table (see claim). If the key type is not text, or the metadata table cannot store the key of
// this row, every node removes expired rows.
func (s *Store) removeExpired(ctx context.Context) error {
	const op = "sqlserver.RemoveExpired"
	if row := s.settings.cleanupKey(); s.settings.keyType == keyText && len(row) <= s.settings.rowName {
		claimed := false
		statement := strings.NewReplacer("@metadata", s.settings.full(s.settings.metadata), "@row", row).Replace(claim)
		err := s.call(ctx, op, "", writing, func(ctx context.Context, conn *sql.Conn, _ *atomic.Bool) error {
			numbers, err := outputs(ctx, conn, 2, statement, sql.Named("Interval", s.settings.cleanup.Milliseconds()))
			claimed = len(numbers) > 0
			return err
		})
		if err != nil || !claimed {
			return err
		}
	}
	for {
		removed := int64(0)
		err := s.call(ctx, op, "", writing, func(ctx context.Context, conn *sql.Conn, _ *atomic.Bool) error {
			result, err := conn.ExecContext(ctx, s.sql.expired)
			if err != nil {
				return err
			}
			removed, err = result.RowsAffected()
			return err
		})
		if err != nil || removed == 0 {
			return err
		}
	}
}
