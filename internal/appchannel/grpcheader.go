package appchannel

import (
	"mime"
	"net/http"
	"net/textproto"
	"strings"

	"google.golang.org/grpc/metadata"
)

// markedPrefix precedes the names of headers that HTTP itself defines, so that they do not
// collide with what gRPC sends under the same names.
const markedPrefix = "dapr-"

// defined lists the headers that are marked, in the form of metadata.
func defined(name string) bool {
	switch name {
	case "accept", "accept-charset", "accept-language", "accept-ranges", "age", "authorization", "cache-control", "content-type", "cookie",
		"date", "etag", "expect", "from", "host", "if-match", "if-modified-since", "if-none-match", "if-schedule-tag-match",
		"if-unmodified-since", "max-forwards", "origin", "pragma", "range", "referer", "set-cookie", "user-agent", "via", "www-authenticate", "content-language",
		"content-location", "content-encoding", "location", "last-modified", "expires", "vary", "retry-after":
		return true
	}
	return false
}

// ToMetadata turns headers into metadata.
func ToMetadata(h http.Header) metadata.MD {
	md := make(metadata.MD, len(h))
	for name, values := range h {
		key := strings.ToLower(name)
		if defined(key) {
			key = markedPrefix + key
		}
		if key == "content-length" || key == "accept-encoding" || key == "te" || key == "trailer" || strings.HasPrefix(key, "grpc-") || strings.HasSuffix(key, "-bin") {
			continue // gRPC has its own
		}
		for _, v := range values {
			md[key] = append(md[key], printable(v))
		}
	}
	return md
}

// printable keeps what gRPC allows in a value: visible ASCII and spaces.
func printable(v string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, v)
}

// FromMetadata turns metadata into headers.
func FromMetadata(md metadata.MD) http.Header {
	h := make(http.Header, len(md)+2)
	for key, values := range md {
		if key == "content-type" || strings.HasPrefix(key, "grpc-") || strings.HasPrefix(key, ":") || strings.HasSuffix(key, "-bin") {
			continue
		}
		if bare := strings.TrimPrefix(key, markedPrefix); defined(bare) {
			key = bare
		}
		h[textproto.CanonicalMIMEHeaderKey(key)] = values
	}
	return h
}

// typed is the type of a protobuf message; its parameter names which one it is.
const typed = "application/x-protobuf"

// MessageType is the content type of a message of the type that url names.
func MessageType(url string) string {
	return mime.FormatMediaType(typed, map[string]string{"type": url})
}

// TypeURL splits a content type into one and the name of a message type: a call of gRPC
// carries either.
func TypeURL(contentType string) (kind, url string) {
	if !strings.HasPrefix(contentType, typed) {
		return contentType, ""
	}
	if media, params, err := mime.ParseMediaType(contentType); err == nil && media == typed && params["type"] != "" {
		return "", params["type"]
	}
	return contentType, ""
}
