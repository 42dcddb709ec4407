// Package headers decides which HTTP headers an application must not set, because they belong to the runtime or to a
// single connection. It owns this rule, which also covers unusual spellings that a server may read as the same headers.
package headers

import (
	"net/textproto"
	"strings"
)

// PerHop reports whether a header belongs to one connection or to the runtime. Such a header must not be forwarded
// from one application to another. name must be in canonical form.
func PerHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
		"Transfer-Encoding",
		"Upgrade", "Http2-Settings", "Dapr-App-Id", "Destination-App-Id", "Dapr-Caller-App-Id",
		"Dapr-Caller-Namespace", "Dapr-Callee-App-Id":
		return true
	}
	return strings.HasPrefix(name, "Quorate-")
}

// FoldsToOurs reports whether name is an unusual spelling that a server could confuse with a header that applications
// must not set. For example, servers that convert headers to CGI variables use HTTP_DAPR_CALLER_APP_ID for both
// "Dapr_Caller_App_Id" and "Dapr-Caller-App-Id". For a name with only letters, digits and "-", FoldsToOurs returns
// false.
func FoldsToOurs(name string) bool {
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
	}
	if strings.IndexFunc(name, odd) < 0 {
		return false
	}
	folded := textproto.CanonicalMIMEHeaderKey(strings.Map(func(r rune) rune {
		if odd(r) {
			return '-'
		}
		return r
	}, name))
	switch folded {
	case "Dapr-Api-Token", "Content-Length", "X-Forwarded-For", "X-Forwarded-Host":
		return true
	}
	return PerHop(folded)
}
