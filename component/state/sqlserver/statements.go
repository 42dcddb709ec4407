package sqlserver

import (
	"strconv"
	"strings"
)

// exact is a collation that compares strings by their code units. The key column of tables that this package creates
// has this collation.
const exact = "Latin1_General_100_BIN2"

// databaseQuery is the query with which find reads the properties of the database.
const databaseQuery = `SELECT CONVERT(nvarchar(20), DATABASEPROPERTYEX(DB_NAME(), 'Updateability')), ` +
	`CONVERT(bigint, d.compatibility_level), d.is_read_committed_snapshot_on, ` +
	`CONVERT(bit, CASE WHEN d.replica_id IS NULL THEN 0 ELSE 1 END), ` +
	`CONVERT(bit, CASE WHEN d.delayed_durability = 2 THEN 1 ELSE 0 END) ` +
	`FROM sys.databases AS d WHERE d.name = DB_NAME()`

// statements are the SQL statements for one table. They treat an expired row as absent, even if the row is still in the
// table. As in Dapr, times come from SQL Server's clock and are in the time zone of the server.
//
// In statements that write, # stands for the number of an item. For example, @K# becomes @K0 for item 0. An item has
// these parameters:
//
//	K      key
//	E      rowversion
//	M, U   minutes and microseconds until the expiry; a negative M means never
//	D      the value as text
//	B, I   only in v2: the value as bytes, and whether it is stored as bytes
type statements struct {
	get              string // columns: key, text, bytes, whether it has bytes, rowversion, microseconds left
	bulk             string // argument: a JSON array of keys; columns: as get
	list, order      string // list: columns key, rowversion, microseconds left; order: the expression to sort by
	lock             string // argument: as bulk; columns: key, rowversion, whether it has expired
	upsert, create   string // columns: number, rowversion
	update, removeIf string // columns: number, rowversion
	remove           string // no columns
	expired          string // removes up to 1000 expired rows
}

// newStatements returns the statements for a table. collation is the collation of the key column, or "" if the key
// type is not text.
func newStatements(s settings, version Version, collation string) statements {
	const never, now = `t.[ExpireDate] IS NULL`, `SYSDATETIME()`
	columns := map[Version][]string{
		V1: {"@value", "t.[Data], CONVERT(varbinary(max), NULL), CONVERT(bit, 0)", "@names", "[Data]",
			"@params", "@D#", "@set", "t.[Data] = @D#"},
		V2: {"@value", "t.[Data], t.[BinaryData], t.[isBinary]", "@names", "[Data], [BinaryData], [isBinary]",
			"@params", "@D#, @B#, @I#", "@set", "t.[Data] = @D#, t.[BinaryData] = @B#, t.[isBinary] = @I#"},
	}
	keys := map[string][]string{
		keyText: {"@key", "t.[Key]", "@json", "nvarchar(4000)", "@collate", " COLLATE " + collation,
			// The collation may treat different keys as equal.
			"@same", "t.[Key] = @K# AND CONVERT(varbinary(max), t.[Key]) = CONVERT(varbinary(max), @K#)"},
		keyUUID: {"@key", "LOWER(CONVERT(nvarchar(36), t.[Key]))", "@json", "uniqueidentifier", "@collate", "",
			"@same", "t.[Key] = @K#"},
		keyInteger: {"@key", "CONVERT(nvarchar(36), t.[Key])", "@json", "int", "@collate", "", "@same",
			"t.[Key] = @K#"},
	}
	names := strings.NewReplacer(append(append(columns[version], keys[s.keyType]...),
		"@table", s.full(s.table), "@alive", "("+never+" OR t.[ExpireDate] > "+now+")",
		"@locked", "WITH (UPDLOCK, SERIALIZABLE)",
		// A time after the year 9999 would be an error. DATEADD adds numbers of the type int.
		"@until", `CASE WHEN @M# < 0 THEN NULL `+
			`WHEN @M# >= DATEDIFF_BIG(MINUTE, `+now+`, '9999-12-31T23:59:00') THEN '9999-12-31T23:59:59' `+
			`ELSE DATEADD(DAY, @M# / 1440, DATEADD(MINUTE, @M# % 1440, DATEADD(MICROSECOND, @U#, `+now+`))) END`)...)
	f := func(text string) string { return names.Replace(names.Replace(text)) }
	const rest = `t.[RowVersion], DATEDIFF_BIG(MICROSECOND, SYSDATETIME(), t.[ExpireDate]) `
	const read = `SELECT @key, @value, ` + rest
	// The hint LOOP makes SQL Server look each key up in the index, however many rows it expects.
	const wanted = `FROM OPENJSON(@Keys) WITH ([Key] @json '$') AS k INNER LOOP JOIN @table AS t`
	const change = `UPDATE t SET @set, t.[UpdateDate] = GETDATE(), t.[ExpireDate] = @until ` +
		`OUTPUT #, inserted.[RowVersion] FROM @table AS t @locked WHERE @same`
	const insert = `INSERT INTO @table ([Key], @names, [ExpireDate]) OUTPUT #, inserted.[RowVersion] ` +
		`VALUES (@K#, @params, @until);`
	order := f("@key COLLATE " + exact)
	if collation == exact {
		order = f("@key") // the order of the index
	}
	return statements{
		get:   strings.ReplaceAll(f(read+`FROM @table AS t WHERE @same AND @alive`), "#", ""),
		bulk:  f(read + wanted + ` ON t.[Key] = k.[Key]@collate WHERE @alive`),
		list:  f(`SELECT TOP (@Limit) @key, ` + rest + `FROM @table AS t WHERE @alive`),
		order: order,
		lock: f(`SELECT @key, t.[RowVersion], CONVERT(bit, ` +
			`CASE WHEN t.[ExpireDate] <= SYSDATETIME() THEN 1 ELSE 0 END) ` + wanted +
			` @locked ON t.[Key] = k.[Key]@collate`),
		upsert: f(change + `; IF @@ROWCOUNT = 0 ` + insert),
		create: f(change + ` AND t.[ExpireDate] <= SYSDATETIME(); IF @@ROWCOUNT = 0 AND NOT EXISTS ` +
			`(SELECT 1 FROM @table AS t @locked WHERE @same) ` + insert),
		update: f(change + ` AND t.[RowVersion] = @E# AND @alive;`),
		remove: f(`DELETE t FROM @table AS t WHERE @same;`),
		removeIf: f(`DELETE t OUTPUT #, deleted.[RowVersion] FROM @table AS t ` +
			`WHERE @same AND t.[RowVersion] = @E# AND @alive;`),
		expired: f(`DELETE TOP (1000) t FROM @table AS t WHERE t.[ExpireDate] <= SYSDATETIME()`),
	}
}

// page returns the statement that lists keys in ascending order, from @From on. If exclusive is true, the list does not
// contain @From itself. If end is not empty, the list has only keys below @End.
func (s statements) page(exclusive bool, end string) string {
	text := s.list + " AND " + s.order + " >= @From"
	if exclusive {
		text = s.list + " AND " + s.order + " > @From"
	}
	if end != "" {
		text += " AND " + s.order + " < @End"
	}
	return text + " ORDER BY " + s.order
}

// numbered returns a statement for the item with the number i.
func numbered(statement string, i int) string {
	return strings.ReplaceAll(statement, "#", strconv.Itoa(i))
}

// Parts of a batch that is one transaction. An error rolls the whole transaction back.
const (
	batch  = "SET NOCOUNT ON; SET XACT_ABORT ON; "
	begin  = "BEGIN TRANSACTION; "
	commit = " COMMIT TRANSACTION;"
)
