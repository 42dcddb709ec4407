package jsonbody

import (
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
)

// The functions of this file append parts of answers to a byte slice. They copy values byte for byte as they were
// saved, which encoding/json would not do.

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	done := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < ' ' || c == '"' || c == '\\' || c == 0x7f {
				dst = append(dst, s[done:i]...)
				switch c {
				case '"', '\\':
					dst = append(dst, '\\', c)
				default:
					dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
				}
				done = i + 1
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			dst = append(dst, s[done:i]...)
			dst = append(dst, "\ufffd"...)
			done = i + 1
		}
		i += size
	}
	dst = append(dst, s[done:]...)
	return append(dst, '"')
}

// AppendField appends a comma and a member of a JSON object. It does not escape name.
func AppendField(dst []byte, name, value string) []byte {
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	dst = append(dst, '"', ':')
	return AppendString(dst, value)
}

// AppendBulk appends the answer of a bulk read.
func AppendBulk(dst []byte, items []state.Item) []byte {
	dst = append(dst, '[')
	for i := range items {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendBulkItem(dst, &items[i])
	}
	return append(dst, ']')
}

func appendBulkItem(dst []byte, item *state.Item) []byte {
	dst = append(dst, `{"key":`...)
	dst = AppendString(dst, item.Key)
	switch {
	case item.Err != nil:
		dst = AppendField(dst, "error", api.AsError(item.Err).Message)
	case item.Found():
		dst = append(dst, `,"data":`...)
		binary := item.ContentType != "" || !json.Valid(item.Value)
		if binary {
			dst = AppendBase64(dst, item.Value)
		} else {
			dst = append(dst, item.Value...)
		}
		if item.ETag != "" {
			dst = AppendField(dst, "etag", item.ETag)
		}
		dst = appendItemMetadata(dst, item, binary)
	}
	return append(dst, '}')
}

// AppendBase64 appends value as a JSON string in base64.
func AppendBase64(dst, value []byte) []byte {
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, value)
	return append(dst, '"')
}

// appendItemMetadata appends the metadata of an item to dst: the content type, if binary is true, and the expiry
// time, if the item has one.
func appendItemMetadata(dst []byte, item *state.Item, binary bool) []byte {
	if !binary && item.Expires.IsZero() {
		return dst
	}
	dst = append(dst, `,"metadata":{`...)
	start := len(dst)
	if binary {
		kind := item.ContentType
		if kind == "" {
			kind = state.OctetStream
		}
		dst = AppendField(dst, state.MetadataContentType, kind)
	}
	if !item.Expires.IsZero() {
		dst = AppendField(dst, state.MetadataExpireTime, Expires(item.Expires))
	}
	dst = append(dst[:start], dst[start+1:]...) // without the first comma
	return append(dst, '}')
}

// AppendPage appends the answer of a listing.
func AppendPage(dst []byte, page *api.Page) []byte {
	dst = append(dst, `{"keys":[`...)
	for i := range page.Items {
		item := &page.Items[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"key":`...)
		dst = AppendString(dst, item.Key)
		if item.Err != nil {
			dst = AppendField(dst, "error", api.AsError(item.Err).Message)
		} else {
			dst = AppendField(dst, "etag", item.ETag)
			if !item.Expires.IsZero() {
				dst = AppendField(dst, state.MetadataExpireTime, Expires(item.Expires))
			}
		}
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	if page.Token != "" {
		dst = AppendField(dst, "token", page.Token)
	}
	return append(dst, '}')
}

// Expires formats an expiry time for headers and bodies: in UTC, as in RFC 3339, rounded up to a whole second.
func Expires(at time.Time) string { return state.ExpirySecond(at).Format(time.RFC3339) }

// The beginnings of error details in JSON. The details have the types of google.rpc, because programs parse them.
const (
	typeErrorInfo    = `{"@type":"type.googleapis.com/google.rpc.ErrorInfo"`
	typeResourceInfo = `{"@type":"type.googleapis.com/google.rpc.ResourceInfo","resource_type":"state"`
	typeBadRequest   = `{"@type":"type.googleapis.com/google.rpc.BadRequest","field_violations":[`
)

// AppendError appends the body of an error, without its closing brace. The caller may append more members.
func AppendError(dst []byte, e *api.Error) []byte {
	dst = append(dst, `{"errorCode":`...)
	dst = AppendString(dst, e.Code)
	dst = AppendField(dst, "message", e.Message)
	if e.Details.Reason == "" {
		return dst
	}
	dst = append(dst, `,"details":[`...)
	dst = appendErrorInfo(dst, &e.Details)
	if e.Details.Store != "" {
		dst = append(dst, ',')
		dst = appendResource(dst, e)
	}
	if len(e.Details.Violations) > 0 {
		dst = append(dst, ',')
		dst = appendViolations(dst, e.Details.Violations)
	}
	return append(dst, ']')
}

// appendResource appends the JSON that names the component that an error is about. As in Dapr, the description is
// empty if the component is a state store.
func appendResource(dst []byte, e *api.Error) []byte {
	if e.Details.Resource == "" {
		dst = append(dst, typeResourceInfo...)
		dst = AppendField(dst, "resource_name", e.Details.Store)
		return append(dst, `,"owner":"","description":""}`...)
	}
	dst = append(dst, `{"@type":"type.googleapis.com/google.rpc.ResourceInfo"`...)
	dst = AppendField(dst, "resource_type", e.Details.Resource)
	dst = AppendField(dst, "resource_name", e.Details.Store)
	dst = append(dst, `,"owner":""`...)
	dst = AppendField(dst, "description", e.Message)
	return append(dst, '}')
}

func appendErrorInfo(dst []byte, d *api.Details) []byte {
	dst = append(dst, typeErrorInfo...)
	dst = AppendField(dst, "domain", d.Domain())
	dst = AppendField(dst, "reason", d.Reason)
	dst = append(dst, `,"metadata":{`...)
	for i, a := range d.Metadata {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendString(dst, a.Name)
		dst = append(dst, ':')
		dst = AppendString(dst, a.Value)
	}
	return append(dst, "}}"...)
}

func appendViolations(dst []byte, list []api.Violation) []byte {
	dst = append(dst, typeBadRequest...)
	for i, v := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"field":`...)
		dst = AppendString(dst, v.Field)
		dst = AppendField(dst, "description", v.Description)
		dst = append(dst, '}')
	}
	return append(dst, "]}"...)
}
