package postgresql

import "strings"

// statements are the SQL statements for one table. An expired row may still be in the table, but the statements treat
// it as absent.
type statements struct {
	get, bulk, list string // columns: key, value, whether it is bytes, ETag, seconds left or NULL; no value in list
	lock            string // columns: key, ETag, whether the row has expired
	upsert, create  string // arguments: arrays of items; columns: key, ETag
	update          string // arguments: as for upsert, and the ETag that the row must have
	remove          string // arguments: keys
	removeIf        string // arguments: one key, its ETag
	expired         string // removes up to 1000 expired rows
}

// newStatements returns the statements of a version.
func newStatements(table string, version Version) statements {
	columns := map[Version][]string{
		V1: {"@value", "value", "@bytes", "isbinary", "@etag", "xmin::text", "@expires", "expiredate",
			"@updated", "updatedate"},
		V2: {"@value", "value", "@bytes", "false", "@etag", "etag::text", "@expires", "expires_at",
			"@updated", "updated_at"},
	}
	fill := strings.NewReplacer(append(columns[version], "@table", table)...)
	f := func(text string) string { return fill.Replace(text) }
	// PostgreSQL before version 17 cannot subtract now() from the time infinity.
	const rest = `, @etag, (extract(epoch FROM @expires) - extract(epoch FROM now()))::float8
FROM @table WHERE (@expires IS NULL OR @expires > now()) AND `
	const read = `SELECT key, @value, @bytes` + rest
	// Rows are written in the order of their keys, so that no two transactions wait for each other.
	const arrived = `SELECT k, v, e::uuid, CASE WHEN l <> 0 THEN now() + l * interval '1 microsecond' END
FROM unnest($1::text[], $2::bytea[], $3::text[], $4::bigint[]) AS u(k, v, e, l) ORDER BY k COLLATE "C"`
	insert := `INSERT INTO @table AS t (key, value, etag, expires_at) ` + arrived + `
ON CONFLICT (key) DO UPDATE SET value = excluded.value, etag = excluded.etag, expires_at = excluded.expires_at,
@updated = now()`
	update := `UPDATE @table AS t SET value = u.v, etag = u.e::uuid, @updated = now(),
@expires = CASE WHEN u.l <> 0 THEN now() + u.l * interval '1 microsecond' END
FROM unnest($1::text[], $2::bytea[], $3::text[], $4::bigint[]) AS u(k, v, e, l)`
	if version == V1 {
		const arrived = `SELECT k, v::jsonb, b, CASE WHEN l <> 0 THEN now() + l * interval '1 microsecond' END
FROM unnest($1::text[], $2::text[], $3::boolean[], $4::bigint[]) AS u(k, v, b, l) ORDER BY k COLLATE "C"`
		insert = `INSERT INTO @table AS t (key, value, isbinary, expiredate) ` + arrived + `
ON CONFLICT (key) DO UPDATE SET value = excluded.value, isbinary = excluded.isbinary,
expiredate = excluded.expiredate, @updated = now()`
		update = `UPDATE @table AS t SET value = u.v::jsonb, isbinary = u.b, @updated = now(),
@expires = CASE WHEN u.l <> 0 THEN now() + u.l * interval '1 microsecond' END
FROM unnest($1::text[], $2::text[], $3::boolean[], $4::bigint[]) AS u(k, v, b, l)`
	}
	return statements{
		get:  f(read + `key = $1`),
		bulk: f(read + `key = ANY($1::text[])`),
		list: f(`SELECT key, NULL::bytea, false` + rest + `
key COLLATE "C" >= $1 AND key COLLATE "C" > $2 AND ($3 = '' OR key COLLATE "C" < $3)
ORDER BY key COLLATE "C" LIMIT $4`),
		lock: f(`SELECT key, @etag, COALESCE(@expires <= now(), false)
FROM @table WHERE key = ANY($1::text[]) ORDER BY key COLLATE "C" FOR UPDATE`),
		upsert: f(insert + ` RETURNING t.key, t.@etag`),
		create: f(insert + ` WHERE t.@expires <= now() RETURNING t.key, t.@etag`),
		update: f(update + ` WHERE t.key = u.k AND t.@etag = $5 AND (t.@expires IS NULL OR t.@expires > now())
RETURNING t.key, t.@etag`),
		remove: f(`DELETE FROM @table WHERE key = ANY($1::text[])`),
		removeIf: f(`DELETE FROM @table
WHERE key = $1 AND @etag = $2 AND (@expires IS NULL OR @expires > now())`),
		expired: f(`DELETE FROM @table WHERE key IN (SELECT key FROM @table
WHERE @expires IS NOT NULL AND @expires <= now() LIMIT 1000 FOR UPDATE SKIP LOCKED) AND @expires <= now()`),
	}
}
