package appchannel

import (
	"mime"
	"net/http"
	"net/textproto"
	"strings"

	"google.golang.org/grpc/metadata"
)

// markedPrefix is put before the names of some HTTP headers, such as Content-Type, when they are sent as gRPC metadata.
// Without the prefix, gRPC would treat some of these headers as its own metadata.
const markedPrefix = "dapr-"

// defined reports whether an HTTP header gets markedPrefix. name is the name of the header in lower case.
func defined(name string) bool {
	switch name {
	case "accept", "accept-charset", "accept-language", "accept-ranges", "age", "authorization", "cache-control",
		"content-type", "cookie",
		"date", "etag", "expect", "from", "host", "if-match", "if-modified-since", "if-none-match",
		"if-schedule-tag-match",
		"if-unmodified-since", "max-forwards", "origin", "pragma", "range", "referer", "set-cookie", "user-agent",
		"via", "www-authenticate", "content-language",
		"content-location", "content-encoding", "location", "last-modified", "expires", "vary", "retry-after":
		return true
	}
	return false
}

// ToMetadata converts HTTP headers to gRPC metadata. It leaves out headers that gRPC sets itself or reserves. It also
// leaves out headers whose names cannot be keys of metadata.
func ToMetadata(h http.Header) metadata.MD {
	md := make(metadata.MD, len(h))
	for name, values := range h {
		key := strings.ToLower(name)
		if defined(key) {
			key = markedPrefix + key
		}
		if key == "content-length" || key == "accept-encoding" || key == "te" || key == "trailer" ||
			key == "dapr-type-url" || !settable(key) {
			continue
		}
		for _, v := range values {
			md[key] = append(md[key], printable(v))
		}
	}
	return md
}

// settable reports whether the metadata of a call may contain key. The key must consist of a to z, 0 to 9, "-", "_" and
// ".", and must not be reserved by gRPC.
func settable(key string) bool {
	return strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == "" &&
		!strings.HasPrefix(key, "grpc-") && !strings.HasSuffix(key, "-bin")
}

// printable returns v, with "?" in place of each character that gRPC does not allow in a metadata value. Visible ASCII
// characters and spaces are allowed.
func printable(v string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, v)
}

// FromMetadata converts gRPC metadata to HTTP headers. It leaves out binary metadata, and entries that gRPC itself
// sets, such as content-type.
func FromMetadata(md metadata.MD) http.Header {
	h := make(http.Header, len(md)+2)
	for key, values := range md {
		if key == "content-type" || strings.HasPrefix(key, "grpc-") || strings.HasPrefix(key, ":") ||
			strings.HasSuffix(key, "-bin") {
			continue
		}
		if bare := strings.TrimPrefix(key, markedPrefix); defined(bare) {
			key = bare
		}
		h[textproto.CanonicalMIMEHeaderKey(key)] = values
	}
	return h
}

// typed is the content type of a protobuf message. Its parameter names the message type.
const typed = "application/x-protobuf"

// typeHeader is the header for the type URL of a protobuf message that also has a content type. If there is no content
// type, the URL is a parameter of the header Content-Type instead.
const typeHeader = "Dapr-Type-Url"

// SetMessageType stores the content type of a message and its protobuf type URL in the headers h. Either may be empty.
func SetMessageType(h http.Header, kind, url string) {
	delete(h, typeHeader)
	switch {
	case kind != "" && url != "":
		h["Content-Type"], h[typeHeader] = []string{kind}, []string{printable(url)}
	case kind != "":
		h["Content-Type"] = []string{kind}
	case url != "":
		h["Content-Type"] = []string{mime.FormatMediaType(typed, map[string]string{"type": url})}
	}
}

// MessageTypeOf returns the content type and the type URL that SetMessageType has stored in h.
func MessageTypeOf(h http.Header) (kind, url string) {
	kind = h.Get("Content-Type")
	if strings.HasPrefix(kind, typed) {
		media, params, err := mime.ParseMediaType(kind)
		if err == nil && media == typed && params["type"] != "" {
			return "", params["type"]
		}
	}
	return kind, h.Get(typeHeader)
}
