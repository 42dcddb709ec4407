package sqlserver_test

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"

	"github.com/quorate/quorate/component/state"
)

// row is a row of the table. A nil text or nil bytes are NULL.
type row struct {
	key     string
	text    any
	bytes   any
	binary  bool
	version uint64
	expires time.Time // zero = NULL
}

// rows has the rows of the table by key.
type rows map[string]row

// table is the storage of the fake server.
type table struct {
	sync.Mutex
	name      string
	rows      rows
	counter   uint64
	leaps     time.Duration
	databases map[string]bool
	columns   [][]any // name, type, bytes, collation; none = the table does not exist
	metadata  int64   // bytes of a key of the metadata table; 0 = the table does not exist
	indexes   map[string]bool
	claims    map[string]time.Time // by the key of the row
	access    string
	level     int64
	snapshot  bool
	replica   bool
	parsed    map[string][]string // parsed clauses, by their text
}

func newTable() *table {
	return &table{name: "state", rows: rows{}, databases: map[string]bool{"master": true, "orders": true},
		access: "READ_WRITE", level: 160, snapshot: true, indexes: map[string]bool{}, claims: map[string]time.Time{},
		parsed: map[string][]string{}}
}

// refusal is an error of SQL Server.
type refusal struct {
	number int32
	class  byte
	msg    string
}

func (r refusal) Error() string { return r.msg }

// Now returns the time of the server.
func (t *table) Now() time.Time {
	t.Lock()
	defer t.Unlock()
	return t.now()
}
func (t *table) now() time.Time { return time.Now().Add(t.leaps) }

// leap advances the clock of the server.
func (t *table) leap(d time.Duration) {
	t.Lock()
	defer t.Unlock()
	t.leaps += d
}

func (t *table) exists(database string) bool {
	t.Lock()
	defer t.Unlock()
	return t.databases[database]
}

func (t *table) next() uint64 {
	t.Lock()
	defer t.Unlock()
	t.counter++
	return t.counter
}

func (t *table) save() *rows {
	t.Lock()
	defer t.Unlock()
	saved := maps.Clone(t.rows)
	return &saved
}

func (t *table) restore(saved *rows) {
	t.Lock()
	defer t.Unlock()
	t.rows = *saved
}

// collation returns the collation of the key column.
func (t *table) collation() string {
	for _, c := range t.columns {
		if c[0] == "Key" {
			return c[3].(string)
		}
	}
	return ""
}

// fold returns the same text for keys that the table treats as equal. SQL Server ignores spaces at the end, and most
// collations ignore case.
func (t *table) fold(key string) string {
	key = strings.TrimRight(key, " ")
	if strings.Contains(t.collation(), "_CI_") {
		key = strings.ToLower(key)
	}
	return key
}

// compare orders keys like a collation that compares code units. SQL Server pads the shorter key with spaces.
func compare(a, b string) int {
	x, y := utf16.Encode([]rune(a)), utf16.Encode([]rune(b))
	for len(x) < len(y) {
		x = append(x, ' ')
	}
	for len(y) < len(x) {
		y = append(y, ' ')
	}
	return slices.Compare(x, y)
}

// batchRun is the execution of one request: its parameters, its results, and the number of changed rows.
type batchRun struct {
	*table
	params  map[string]any
	changed int // number of rows that the last statement has changed
	total   int
	results []result
}

// execute executes a request. It returns the results and the number of changed rows.
func (t *table) execute(r request) ([]result, int, error) {
	t.Lock()
	defer t.Unlock()
	if results, known, err := t.administer(r); known {
		return results, 0, err
	}
	c := &batchRun{table: t, params: r.params}
	text := strings.ReplaceAll(r.text, "[dbo].["+t.name+"]", "[dbo].[state]")
	body := strings.TrimPrefix(text, "SET NOCOUNT ON; SET XACT_ABORT ON; ")
	body = strings.TrimSuffix(strings.TrimPrefix(body, "BEGIN TRANSACTION; "), " COMMIT TRANSACTION;")
	for _, statement := range strings.Split(body, ";") {
		if err := c.statement(strings.TrimSpace(statement)); err != nil {
			return nil, 0, err
		}
	}
	return c.results, c.total, nil
}

var (
	selects = regexp.MustCompile(`^SELECT (TOP \(@Limit\) )?(.*?) FROM ` +
		`(OPENJSON\(@Keys\) WITH \(\[Key\] (?:nvarchar\(4000\)|uniqueidentifier|int) '\$'\) AS k ` +
		`INNER LOOP JOIN )?\[dbo\]\.\[state\] AS t( WITH \(UPDLOCK, SERIALIZABLE\))?` +
		`(?: ON t\.\[Key\] = k\.\[Key\](?: COLLATE \w+)?)?(?: WHERE (.*?))?(?: ORDER BY (.*))?$`)
	updates = regexp.MustCompile(`^UPDATE t SET (.*) OUTPUT (\d+), inserted\.\[RowVersion\] ` +
		`FROM \[dbo\]\.\[state\] AS t WITH \(UPDLOCK, SERIALIZABLE\) WHERE (.*)$`)
	inserts = regexp.MustCompile(`^IF @@ROWCOUNT = 0 (?:AND NOT EXISTS \(SELECT 1 FROM \[dbo\]\.\[state\] AS t ` +
		`WITH \(UPDLOCK, SERIALIZABLE\) WHERE (.*?)\) )?INSERT INTO \[dbo\]\.\[state\] \((.*)\) ` +
		`OUTPUT (\d+), inserted\.\[RowVersion\] VALUES \((.*)\)$`)
	deletes = regexp.MustCompile(`^DELETE (?:TOP \((\d+)\) )?t (?:OUTPUT (\d+), deleted\.\[RowVersion\] )?` +
		`FROM \[dbo\]\.\[state\] AS t WHERE (.*)$`)
	until = regexp.MustCompile(`^CASE WHEN @M(\d+) < 0 THEN NULL WHEN @M\d+ >= DATEDIFF_BIG\(MINUTE, ` +
		`SYSDATETIME\(\), '9999-12-31T23:59:00'\) THEN '9999-12-31T23:59:59' ELSE DATEADD\(DAY, @M\d+ / 1440, ` +
		`DATEADD\(MINUTE, @M\d+ % 1440, DATEADD\(MICROSECOND, @U(\d+), SYSDATETIME\(\)\)\)\) END$`)
)

const alive = "(t.[ExpireDate] IS NULL OR t.[ExpireDate] > SYSDATETIME())"

func (c *batchRun) statement(text string) error {
	if text == "" {
		return nil
	}
	if c.columns == nil {
		return refusal{208, 16, "Invalid object name 'dbo.state'."}
	}
	switch {
	case selects.MatchString(text):
		return c.read(selects.FindStringSubmatch(text))
	case updates.MatchString(text):
		return c.update(updates.FindStringSubmatch(text))
	case inserts.MatchString(text):
		return c.insert(inserts.FindStringSubmatch(text))
	case deletes.MatchString(text):
		return c.remove(deletes.FindStringSubmatch(text))
	}
	return fmt.Errorf("the fake does not know the statement %s", text)
}

// split splits a text at each separator that is not inside parentheses.
func split(text, separator string) []string {
	var out []string
	depth, from := 0, 0
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '(':
			depth++
		case text[i] == ')':
			depth--
		case depth == 0 && strings.HasPrefix(text[i:], separator):
			out = append(out, text[from:i])
			from = i + len(separator)
		}
	}
	return append(out, text[from:])
}

// matches reports whether a row matches a condition of a WHERE clause.
func (c *batchRun) matches(r row, condition string) (bool, error) {
	if condition == "" {
		return true, nil
	}
	parts, ok := c.parsed[" "+condition]
	if !ok {
		parts = split(condition, " AND ")
		c.parsed[" "+condition] = parts
	}
	for _, term := range parts {
		ok, err := c.term(r, term)
		if !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

var terms = regexp.MustCompile(`^(.*?)(?: COLLATE Latin1_General_100_BIN2)? (=|>=|>|<) (.*)$`)

func (c *batchRun) term(r row, term string) (bool, error) {
	now := c.now()
	switch term {
	case alive:
		return r.expires.IsZero() || r.expires.After(now), nil
	case "t.[ExpireDate] <= SYSDATETIME()":
		return !r.expires.IsZero() && !r.expires.After(now), nil
	}
	m, ok := c.parsed[term]
	if !ok {
		m = terms.FindStringSubmatch(term)
		c.parsed[term] = m
	}
	if m == nil {
		return false, fmt.Errorf("the fake does not know the condition %s", term)
	}
	left, operator, right := m[1], m[2], m[3]
	if inner, ok := strings.CutPrefix(left, "CONVERT(varbinary(max), "); ok && inner == "t.[Key])" {
		name := strings.TrimSuffix(strings.TrimPrefix(right, "CONVERT(varbinary(max), "), ")")
		return r.key == c.params[name], nil
	}
	value, ok := c.params[right]
	switch {
	case !ok:
		return false, refusal{137, 15, "Must declare the scalar variable " + right}
	case left == "t.[RowVersion]":
		return string(version(r.version)) == string(value.([]byte)), nil
	case left == "t.[Key]" && operator == "=":
		return c.fold(r.key) == c.fold(value.(string)), nil
	case !isKey(left):
		return false, fmt.Errorf("the fake does not know the condition %s", term)
	}
	order := compare(r.key, value.(string))
	return map[string]bool{">=": order >= 0, ">": order > 0, "<": order < 0}[operator], nil
}

// isKey reports whether an expression stands for the key as text.
func isKey(expression string) bool {
	return expression == "t.[Key]" || expression == "CONVERT(nvarchar(36), t.[Key])" ||
		expression == "LOWER(CONVERT(nvarchar(36), t.[Key]))"
}

func version(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// found returns the rows that match a condition, in the order of their keys.
func (c *batchRun) found(condition string) ([]row, error) {
	var out []row
	for _, key := range slices.Sorted(maps.Keys(c.rows)) {
		ok, err := c.matches(c.rows[key], condition)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, c.rows[key])
		}
	}
	return out, nil
}

func (c *batchRun) read(m []string) error {
	top, columns, join, condition, order := m[1], m[2], m[3], m[5], m[6]
	found, err := c.found(condition)
	if err != nil {
		return err
	}
	if join != "" {
		var keys []any
		if err := json.Unmarshal([]byte(c.params["@Keys"].(string)), &keys); err != nil {
			return refusal{13609, 16, "JSON text is not properly formatted."}
		}
		found = slices.DeleteFunc(found, func(r row) bool {
			return !slices.ContainsFunc(keys, func(k any) bool { return c.fold(fmt.Sprint(k)) == c.fold(r.key) })
		})
	}
	if order != "" {
		if !isKey(strings.TrimSuffix(order, " COLLATE Latin1_General_100_BIN2")) {
			return fmt.Errorf("the fake does not know the order %s", order)
		}
		slices.SortFunc(found, func(a, b row) int { return compare(a.key, b.key) })
	}
	if top != "" {
		found = found[:min(int64(len(found)), c.params["@Limit"].(int64))]
	}
	var out result
	for i, expression := range split(columns, ", ") {
		kind, of, err := c.column(expression)
		if err != nil {
			return err
		}
		out.kinds, out.names = append(out.kinds, kind), append(out.names, "c"+strconv.Itoa(i))
		for j, r := range found {
			if i == 0 {
				out.rows = append(out.rows, nil)
			}
			out.rows[j] = append(out.rows[j], of(r))
		}
	}
	c.results = append(c.results, out)
	return nil
}

// column returns the type of an expression, and a function that returns the value of the expression for a row.
func (c *batchRun) column(expression string) (byte, func(row) any, error) {
	now := c.now()
	switch {
	case isKey(expression):
		return typeNVarchar, func(r row) any { return r.key }, nil
	}
	switch expression {
	case "t.[Data]":
		return typeNVarchar, func(r row) any { return r.text }, nil
	case "t.[BinaryData]":
		return typeVarbin, func(r row) any { return r.bytes }, nil
	case "t.[isBinary]":
		return typeBit, func(r row) any { return r.binary }, nil
	case "CONVERT(varbinary(max), NULL)":
		return typeVarbin, func(row) any { return nil }, nil
	case "CONVERT(bit, 0)":
		return typeBit, func(row) any { return false }, nil
	case "t.[RowVersion]":
		return typeBinary, func(r row) any { return version(r.version) }, nil
	case "DATEDIFF_BIG(MICROSECOND, SYSDATETIME(), t.[ExpireDate])":
		return typeInt, func(r row) any {
			if r.expires.IsZero() {
				return nil
			}
			return r.expires.UnixMicro() - now.UnixMicro()
		}, nil
	case "CONVERT(bit, CASE WHEN t.[ExpireDate] <= SYSDATETIME() THEN 1 ELSE 0 END)":
		return typeBit, func(r row) any { return !r.expires.IsZero() && !r.expires.After(now) }, nil
	}
	return 0, nil, fmt.Errorf("the fake does not know the column %s", expression)
}

// set sets a column of a row to the value of an expression.
func (c *batchRun) set(r *row, column, expression string) error {
	if m := until.FindStringSubmatch(expression); m != nil && column == "ExpireDate" {
		r.expires = time.Time{}
		if minutes := c.params["@M"+m[1]].(int64); minutes >= 0 {
			r.expires = time.Unix(state.LastExpiry, 0)
			if minutes < state.LastExpiry/60-c.now().Unix()/60 {
				r.expires = c.now().AddDate(0, 0, int(minutes/1440)).Add(time.Duration(minutes%1440)*time.Minute +
					time.Duration(c.params["@U"+m[2]].(int64))*time.Microsecond)
			}
		}
		return nil
	}
	if column == "UpdateDate" && expression == "GETDATE()" {
		return nil
	}
	value, ok := c.params[expression]
	if !ok {
		return fmt.Errorf("the fake does not know %s = %s", column, expression)
	}
	switch column {
	case "Key":
		r.key = value.(string)
	case "Data":
		r.text = value
	case "BinaryData":
		r.bytes = value
	case "isBinary":
		r.binary = value.(bool)
	default:
		return refusal{207, 16, "Invalid column name '" + column + "'."}
	}
	return nil
}

func name(bracketed string) string {
	return strings.Trim(strings.TrimPrefix(bracketed, "t."), "[]")
}

// output adds an output row with the number of an item and a rowversion.
func (c *batchRun) output(number string, v uint64) {
	n, _ := strconv.ParseInt(number, 10, 64)
	last := len(c.results) - 1
	c.results[last].rows = append(c.results[last].rows, []any{n, version(v)})
}

func (c *batchRun) outputs() {
	c.results = append(c.results, result{kinds: []byte{typeInt, typeBinary}, names: []string{"", "RowVersion"}})
}

func (c *batchRun) update(m []string) error {
	found, err := c.found(m[3])
	if err != nil {
		return err
	}
	c.outputs()
	for _, r := range found {
		for _, assignment := range split(m[1], ", ") {
			column, expression, _ := strings.Cut(assignment, " = ")
			if err := c.set(&r, name(column), expression); err != nil {
				return err
			}
		}
		c.counter++
		r.version = c.counter
		c.rows[r.key] = r
		c.output(m[2], r.version)
	}
	c.count(len(found))
	return nil
}

func (c *batchRun) count(n int) {
	c.changed = n
	c.total += n
}

func (c *batchRun) insert(m []string) error {
	if c.changed != 0 {
		return nil
	}
	if m[1] != "" {
		if there, err := c.found(m[1]); err != nil || len(there) > 0 {
			return err
		}
	}
	var r row
	expressions := split(m[4], ", ")
	for i, column := range split(m[2], ", ") {
		if err := c.set(&r, name(column), expressions[i]); err != nil {
			return err
		}
	}
	for _, other := range c.rows {
		if c.fold(other.key) == c.fold(r.key) {
			return refusal{2627, 14, "Violation of PRIMARY KEY constraint."}
		}
	}
	for _, column := range c.columns {
		size := int64(2 * len(utf16.Encode([]rune(r.key))))
		if column[0] == "Key" && column[1] == "nvarchar" && size > column[2].(int64) {
			return refusal{2628, 16, "String or binary data would be truncated."}
		}
	}
	c.counter++
	r.version = c.counter
	c.rows[r.key] = r
	c.outputs()
	c.output(m[3], r.version)
	c.count(1)
	return nil
}

func (c *batchRun) remove(m []string) error {
	found, err := c.found(m[3])
	if err != nil {
		return err
	}
	if most, err := strconv.Atoi(cmp.Or(m[1], "0")); err == nil && most > 0 {
		found = found[:min(len(found), most)]
	}
	if m[2] != "" {
		c.outputs()
	}
	for _, r := range found {
		delete(c.rows, r.key)
		if m[2] != "" {
			c.output(m[2], r.version)
		}
	}
	c.count(len(found))
	return nil
}
