package sqlserver

import (
	"bytes"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/quorate/quorate/component/state"
)

// Prefixes of a base64-encoded value in v1. Unicode reserves these two characters for internal use, so an ordinary
// string does not begin with them. A value that nevertheless begins with one of them is also stored base64-encoded.
const (
	markBytes = "\uFDD0" // the value is bytes
	markJSON  = "\uFDD1" // the value is JSON that is not UTF-8
)

// besideBytes is the text column of a v2 row whose value was saved as bytes but is also valid JSON. It makes decode
// return the content type OctetStream. Dapr ignores this column if the row has bytes. Computed columns find no property
// in it, because it is an empty JSON object.
const besideBytes = "{}"

// value has the columns of a row that contain its value.
type value struct {
	text   sql.NullString
	bytes  []byte
	binary bool // v2: the value is in bytes
}

// encode returns the columns of a row for the value of o, in the format of the component's version. Version v1 stores
// JSON and other UTF-8 strings unchanged, as Dapr does.
func encode(version Version, o *state.Operation) value {
	text := o.ContentType == "" && json.Valid(o.Value) && utf8.Valid(o.Value)
	if version == V2 {
		switch {
		case text:
			return value{text: some(string(o.Value))}
		case o.ContentType != "" && json.Valid(o.Value):
			return value{text: some(besideBytes), bytes: filled(o.Value), binary: true}
		}
		return value{bytes: filled(o.Value), binary: true}
	}
	plain := utf8.Valid(o.Value) && !bytes.HasPrefix(o.Value, []byte(markBytes)) &&
		!bytes.HasPrefix(o.Value, []byte(markJSON))
	switch {
	case text, plain && !json.Valid(o.Value):
		return value{text: some(string(o.Value))}
	case o.ContentType == "" && json.Valid(o.Value):
		return value{text: some(markJSON + base64.StdEncoding.EncodeToString(o.Value))}
	}
	return value{text: some(markBytes + base64.StdEncoding.EncodeToString(o.Value))}
}

// decode returns the bytes and the content type of the value of a row.
func decode(v value) ([]byte, string, error) {
	switch {
	case v.binary && v.bytes == nil, !v.binary && !v.text.Valid:
		return nil, "", errors.New("the row has no value")
	case v.binary && v.text.Valid:
		return v.bytes, state.OctetStream, nil
	case v.binary:
		return v.bytes, typeOf(v.bytes), nil
	}
	for mark, contentType := range map[string]string{markBytes: state.OctetStream, markJSON: ""} {
		if encoded, ok := strings.CutPrefix(v.text.String, mark); ok {
			out, err := base64.StdEncoding.DecodeString(encoded)
			return out, contentType, err
		}
	}
	out := []byte(v.text.String)
	return out, typeOf(out), nil
}

// typeOf returns the content type of a value that Dapr may have written. Dapr stores no content type, so the result
// depends only on whether the value is valid JSON.
func typeOf(value []byte) string {
	if json.Valid(value) {
		return ""
	}
	return state.OctetStream
}

func some(text string) sql.NullString { return sql.NullString{String: text, Valid: true} }

// filled returns b, or an empty slice if b is nil. The driver would write nil as NULL.
func filled(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// parameter returns the text of the value as an SQL parameter of the type nvarchar(max), or NULL if there is no text.
// This type does not depend on the length of the text, so SQL Server can use the same query plan for all texts.
func (v value) parameter() any {
	if !v.text.Valid {
		return v.text
	}
	return mssql.NVarCharMax(v.text.String)
}
