package sqlserver_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var (
	keyColumns = regexp.MustCompile(`\[Key\] (nvarchar\((\d+)\) COLLATE (\w+)|uniqueidentifier|int) ` +
		`CONSTRAINT \[PK_(?:state|orders)\]`)
	computed    = regexp.MustCompile(`\[(\w+)\] AS CONVERT\(`)
	newIndex    = regexp.MustCompile(`CREATE INDEX \[(\w+)\] ON`)
	claimedRow  = regexp.MustCompile(`FROM \S+ AS m .* WHERE m\.\[Key\] = N'([\w-]+)'\) INSERT INTO`)
	newDatabase = regexp.MustCompile(`^IF DB_ID\(N'(\w+)'\) IS NULL CREATE DATABASE \[(\w+)\]$`)
)

// administer executes requests about the database and its tables. known is false for any other request. The caller
// holds the lock.
func (t *table) administer(r request) (results []result, known bool, err error) {
	text := r.text
	switch {
	case strings.Contains(text, "FROM sys.databases AS d WHERE d.name = DB_NAME()"):
		return []result{{names: []string{"", "", "", "", ""},
			kinds: []byte{typeNVarchar, typeInt, typeBit, typeBit, typeBit},
			rows:  [][]any{{t.access, t.level, t.snapshot, t.replica, false}}}}, true, nil
	case strings.Contains(text, "FROM sys.columns"):
		out := result{names: []string{"name", "type", "length", "collation", "metadata"},
			kinds: []byte{typeNVarchar, typeNVarchar, typeInt, typeNVarchar, typeInt}}
		if r.params["@Table"] != "[dbo].["+t.name+"]" {
			return nil, true, fmt.Errorf("the fake has no table %v", r.params["@Table"])
		}
		for _, c := range t.columns {
			out.rows = append(out.rows, append(append([]any{}, c...), t.metadata))
		}
		return []result{out}, true, nil
	case strings.Contains(text, "sp_getapplock"):
		return nil, true, t.create(text)
	case newDatabase.MatchString(text):
		t.databases[newDatabase.FindStringSubmatch(text)[1]] = true
		return nil, true, nil
	case newIndex.MatchString(text):
		t.indexes[newIndex.FindStringSubmatch(text)[1]] = true
		return nil, true, nil
	case strings.Contains(text, "[dapr_metadata]"):
		results, err := t.claim(r)
		return results, true, err
	}
	return nil, false, nil
}

// create creates the tables that the SQL batch in text describes.
func (t *table) create(text string) error {
	m := keyColumns.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("the fake does not know the table of %s", text)
	}
	if t.columns == nil {
		length, _ := strconv.ParseInt(m[2], 10, 64)
		kind, _, _ := strings.Cut(m[1], "(")
		t.columns = columnsOf(kind, length, m[3], strings.Contains(text, "[isBinary]"))
		for _, c := range computed.FindAllStringSubmatch(text, -1) {
			t.columns = append(t.columns, []any{c[1], "int", int64(4), ""})
		}
	}
	if t.metadata == 0 {
		t.metadata = 400
	}
	return nil
}

// columnsOf returns the columns of a table of version v1, or of v2 if v2 is true. length is the length of the key.
func columnsOf(kind string, length int64, collation string, v2 bool) [][]any {
	out := [][]any{{"Key", kind, 2 * length, collation}, {"Data", "nvarchar", int64(-1), ""}}
	if v2 {
		out = append(out, []any{"BinaryData", "varbinary", int64(-1), ""}, []any{"isBinary", "bit", int64(1), ""})
	}
	for _, name := range []string{"InsertDate", "UpdateDate", "ExpireDate"} {
		out = append(out, []any{name, "datetime2", int64(8), ""})
	}
	return append(out, []any{"RowVersion", "timestamp", int64(8), ""})
}

// claim claims the removal of expired rows. It returns no row if there was a claim within the interval.
func (t *table) claim(r request) ([]result, error) {
	key := claimedRow.FindStringSubmatch(r.text)[1]
	if int64(2*len(key)) > t.metadata {
		return nil, refusal{2628, 16, "String or binary data would be truncated."}
	}
	interval := time.Duration(r.params["@Interval"].(int64)) * time.Millisecond
	out := result{names: []string{""}, kinds: []byte{typeInt}}
	if last, there := t.claims[key]; !there || t.now().Sub(last) >= interval {
		t.claims[key] = t.now()
		out.rows = [][]any{{int64(1)}}
	}
	return []result{out}, nil
}
