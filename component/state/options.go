package state

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"mime"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Names of request metadata that every store supports. Case is ignored.
const (
	MetadataTTL         = "ttlInSeconds"
	MetadataExpireTime  = "ttlExpireTime"
	MetadataContentType = "contentType"
)

// OctetStream is the content type of values that are bytes and not JSON text.
const OctetStream = "application/octet-stream"

// ParseConsistency parses the option or query parameter consistency: "", "eventual" or "strong". It returns
// fault.Invalid for any other text.
//
// The constants of the type Consistency are in ascending order of strictness. If the items of a request have different
// levels, the strictest applies to all of them. DefaultConsistency must be replaced with the default of the store
// before levels are compared.
func ParseConsistency(text string) (Consistency, error) {
	switch text {
	case "":
		return DefaultConsistency, nil
	case "eventual":
		return Eventual, nil
	case "strong":
		return Strong, nil
	}
	return 0, invalid("state.ParseConsistency", fmt.Sprintf("unrecognized consistency model %s", quote(text)),
		`use "eventual" or "strong"`)
}

// String returns the text that ParseConsistency parses as c.
func (c Consistency) String() string {
	switch c {
	case Eventual:
		return "eventual"
	case Strong:
		return "strong"
	default:
		return ""
	}
}

// ParseConcurrency parses the option or query parameter concurrency: "", "last-write" or "first-write". It returns
// fault.Invalid for any other text.
func ParseConcurrency(text string) (Concurrency, error) {
	switch text {
	case "", "last-write":
		return LastWrite, nil
	case "first-write":
		return FirstWrite, nil
	}
	return 0, invalid("state.ParseConcurrency", fmt.Sprintf("unrecognized concurrency model %s", quote(text)),
		`use "first-write" or "last-write"`)
}

// ParseTTL parses the TTL in the metadata of a write:
//
//	ttlInSeconds   1 to 2147483647 seconds after the write; 0 or -1 = never expires
//	ttlExpireTime  a time in RFC 3339 format
//
// If both are missing or empty, it returns the zero TTL. It returns fault.Invalid if both are given, or if a value
// is malformed or out of range.
func ParseTTL(metadata map[string]string) (TTL, error) {
	seconds, err := lookup(metadata, MetadataTTL)
	if err != nil {
		return TTL{}, err
	}
	at, err := lookup(metadata, MetadataExpireTime)
	if err != nil {
		return TTL{}, err
	}
	switch {
	case seconds != "" && at != "":
		return TTL{}, invalid("state.ParseTTL", "metadata has both ttlInSeconds and ttlExpireTime", "give one of them")
	case seconds != "":
		return parseTTLSeconds(seconds)
	case at != "":
		return parseExpireTime(at)
	}
	return TTL{}, nil
}

func parseTTLSeconds(text string) (TTL, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || text[0] == '+' || n < -1 || n > math.MaxInt32 {
		return TTL{}, invalid("state.ParseTTL",
			fmt.Sprintf("ttlInSeconds %s is not a whole number from -1 to %d", quote(text), math.MaxInt32), "")
	}
	return TTL{Set: true, Seconds: max(n, 0)}, nil
}

func parseExpireTime(text string) (TTL, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return TTL{}, invalid("state.ParseTTL",
			fmt.Sprintf("ttlExpireTime %s is not an RFC 3339 time such as 2030-01-02T15:04:05Z", quote(text)), "")
	}
	if at.Unix() > LastExpiry { // a time zone west of UTC
		at = time.Unix(LastExpiry, 0)
	}
	return TTL{Set: true, At: new(at.UTC())}, nil
}

// ParseContentType returns the content type to store with a value, according to the metadata of the write. The result
// is OctetStream, or "" for JSON text. All other content types count as JSON text. It returns fault.Invalid if the
// metadata contains contentType in two spellings.
func ParseContentType(metadata map[string]string) (string, error) {
	text, err := lookup(metadata, MetadataContentType)
	if err != nil || text == "" {
		return "", err
	}
	if kind, _, err := mime.ParseMediaType(text); err == nil && kind == OctetStream {
		return OctetStream, nil
	}
	return "", nil
}

// DecodeBinary decodes the value of an OctetStream item in a JSON body. Such a value is a JSON string in base64, with
// or without padding. DecodeBinary returns fault.Invalid for any other value.
func DecodeBinary(value []byte) ([]byte, error) {
	const op = "state.DecodeBinary"
	var text string
	if len(value) == 0 || value[0] != '"' || json.Unmarshal(value, &text) != nil {
		return nil, invalid(op, "a value with contentType application/octet-stream must be a string in base64", "")
	}
	out, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
	if err != nil {
		return nil, invalid(op, "a value with contentType application/octet-stream is not valid base64",
			"use the standard alphabet")
	}
	return out, nil
}

// lookup returns the value of name in metadata; case is ignored. It returns an error if metadata has the name in two
// spellings, because it is unclear which value applies.
func lookup(metadata map[string]string, name string) (string, error) {
	var found string
	var seen bool
	for k, v := range metadata {
		if !strings.EqualFold(k, name) {
			continue
		}
		if seen {
			return "", invalid("state.lookup", "metadata names "+name+" twice in different spellings", "")
		}
		found, seen = v, true
	}
	return found, nil
}

func invalid(op, msg, hint string) error {
	return &fault.Error{Code: fault.Invalid, Op: op, Msg: msg, Hint: hint}
}
