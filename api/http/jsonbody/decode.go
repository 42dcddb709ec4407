package jsonbody

import (
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
)

// These types are the bodies of requests. Field names are case-insensitive, and unknown fields are ignored. Values are
// kept byte for byte.

type itemBody struct {
	Key      string            `json:"key"`
	Value    json.RawMessage   `json:"value"`
	ETag     string            `json:"etag"`
	Metadata map[string]string `json:"metadata"`
	Options  struct {
		Concurrency string `json:"concurrency"`
		Consistency string `json:"consistency"`
	} `json:"options"`
}

type operationBody struct {
	Operation string   `json:"operation"`
	Request   itemBody `json:"request"`
}

type transactionBody struct {
	Operations []operationBody   `json:"operations"`
	Metadata   map[string]string `json:"metadata"`
}

// Bulk is the body of a bulk read.
type Bulk struct {
	Keys        []string          `json:"keys"`
	Parallelism int               `json:"parallelism"`
	Metadata    map[string]string `json:"metadata"`
}

// Check returns nil if body begins with a valid JSON value, and otherwise the error of Decode. It allocates no memory
// for values.
func Check(body []byte) error { return Decode(body, new(nothing)) }

// nothing accepts any JSON value and ignores it.
type nothing struct{}

// UnmarshalJSON ignores its argument. The decoder calls it with valid JSON only.
func (nothing) UnmarshalJSON([]byte) error { return nil }

// DecodeSave decodes the body of a save, which is a list of items. n is the number of items, from TallyItems.
func DecodeSave(body []byte, n int) ([]api.Item, error) {
	in, ok := plainSave(body, n)
	if !ok {
		in = make([]itemBody, 0, n)
		if err := Decode(body, &in); err != nil {
			return nil, err
		}
	}
	items := make([]api.Item, len(in))
	for i := range in {
		if err := in[i].item(&items[i], i, len(in)); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// DecodeTransaction decodes the body of a state transaction and returns its operations and its metadata. The field
// "operations" must be present, but the list may be empty.
func DecodeTransaction(body []byte) ([]api.Operation, map[string]string, error) {
	var in transactionBody
	if err := Decode(body, &in); err != nil {
		return nil, nil, err
	}
	if in.Operations == nil {
		return nil, nil, api.MalformedRequest(`"operations" is missing (an empty list is allowed)`)
	}
	operations, err := convertOperations(in.Operations)
	return operations, in.Metadata, err
}

// DecodeOperations decodes the body of an actor transaction, which is a list of operations. n is the number of
// operations, from TallyOperations. An upsert without a value saves JSON null, because the Python and JavaScript SDKs
// omit the values None and undefined.
func DecodeOperations(body []byte, n int) ([]api.Operation, error) {
	in := make([]operationBody, 0, n)
	if err := Decode(body, &in); err != nil {
		return nil, err
	}
	for i := range in {
		if in[i].Operation == api.OperationUpsert && in[i].Request.Value == nil {
			in[i].Request.Value = json.RawMessage("null")
		}
	}
	return convertOperations(in)
}

func convertOperations(in []operationBody) ([]api.Operation, error) {
	out := make([]api.Operation, len(in))
	for i := range in {
		out[i].Name = in[i].Operation
		if err := in[i].Request.item(&out[i].Item, i, len(in)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// DecodeBulk decodes the body of a bulk read.
func DecodeBulk(body []byte) (in Bulk, err error) {
	err = Decode(body, &in)
	return in, err
}

func (b *itemBody) item(out *api.Item, index, count int) (err error) {
	out.Key, out.Value, out.JSON, out.ETag, out.Metadata = b.Key, b.Value, true, b.ETag, b.Metadata
	if out.Concurrency, err = state.ParseConcurrency(b.Options.Concurrency); err != nil {
		return api.InvalidOption(itemName(index, count), err)
	}
	if out.Consistency, err = state.ParseConsistency(b.Options.Consistency); err != nil {
		return api.InvalidOption(itemName(index, count), err)
	}
	return nil
}

func itemName(index, count int) string {
	if count == 1 {
		return ""
	}
	return "item " + strconv.Itoa(index) + ": "
}

// Decode decodes the first JSON value of body, and ignores what follows the value. The whole body must be valid UTF-8.
func Decode(body []byte, into any) error {
	if !utf8.Valid(body) {
		return api.MalformedRequest("the body is not valid UTF-8 (send bytes as a base64 string with metadata " +
			"contentType=application/octet-stream)")
	}
	err := json.Unmarshal(body, into)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Offset > 1 &&
		syntax.Offset <= int64(len(body)) {
		// The invalid byte may follow a complete value. In this case the byte is ignored.
		if again := json.Unmarshal(body[:syntax.Offset-1], into); !isSyntax(again) {
			err = again
		}
	}
	if err != nil {
		return api.MalformedRequest(describe(err, body))
	}
	return nil
}

func isSyntax(err error) bool {
	_, ok := errors.AsType[*json.SyntaxError](err)
	return ok
}

// describe returns the error text for a body that cannot be decoded. The text may contain field names of the body, but
// no values. It does not contain the text of err, which may quote a value.
func describe(err error, body []byte) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return describeType(wrong)
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Offset < int64(len(body)) {
		return "the body is not valid JSON: an unexpected character at byte " + strconv.FormatInt(syntax.Offset, 10)
	}
	if len(body) == 0 {
		return "the body is empty"
	}
	return "the body is not valid JSON: it ends too early"
}

func describeType(wrong *json.UnmarshalTypeError) string {
	given, _, _ := strings.Cut(wrong.Value, " ") // "number 12" would reveal the number
	text := fieldName(wrong) + " must be " + kindName(wrong.Type)
	if given != "number" || wrong.Type.Kind() != reflect.Int {
		text += ", not " + article(given)
	}
	return text + " (near byte " + strconv.FormatInt(wrong.Offset, 10) + " of the body)"
}

// fieldName describes in words which part of the body has the wrong type. If an element of a list or object has the
// wrong type, the result names the list or object.
func fieldName(wrong *json.UnmarshalTypeError) string {
	last := wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:]
	kind := wrong.Type.Kind()
	switch {
	case wrong.Field == "" && (wrong.Type == reflect.TypeFor[itemBody]() ||
		wrong.Type == reflect.TypeFor[operationBody]()):
		return "every item of the body"
	case last == "metadata" && kind == reflect.String, last == "keys" && kind == reflect.String,
		last == "operations" && kind == reflect.Struct:
		return "every item of " + strconv.Quote(wrong.Field)
	case wrong.Field == "":
		return "the body"
	default:
		return strconv.Quote(wrong.Field)
	}
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Int:
		return "a whole number"
	case reflect.Map, reflect.Struct:
		return "an object"
	default:
		return "something else"
	}
}

func article(kind string) string {
	switch kind {
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "bool":
		return "a boolean"
	default:
		return "a " + kind
	}
}
