package eventgrid

import (
	"errors"
	"net/url"
	"strings"
)

// scopeForms lists the allowed forms of a scope, for error messages.
const scopeForms = "is none of /subscriptions/<id>, /subscriptions/<id>/resourceGroups/<name> and " +
	"/subscriptions/<id>/resourceGroups/<name>/providers/<namespace>/<type>/<name>"

// parseScope parses an Azure resource id and returns it as an escaped URL path. The id may name an Azure subscription,
// a resource group, or a resource such as a topic. A trailing slash is removed, and segments such as ".." are an error.
func parseScope(text string) (string, error) {
	wrong := errors.New(scopeForms)
	rest, ok := strings.CutPrefix(strings.TrimSuffix(text, "/"), "/")
	if !ok {
		return "", wrong
	}
	parts := strings.Split(rest, "/")
	for i, part := range parts {
		if part == "" || part == "." || part == ".." || strings.ContainsAny(part, "?#%\\") ||
			strings.ContainsFunc(part, control) {
			return "", wrong
		}
		parts[i] = url.PathEscape(part)
	}
	at := func(i int, word string) bool { return strings.EqualFold(parts[i], word) }
	switch n := len(parts); {
	case n < 2 || !at(0, "subscriptions"):
		return "", wrong
	case n == 2:
	case n == 4 && at(2, "resourceGroups"):
	case n >= 8 && n%2 == 0 && at(2, "resourceGroups") && at(4, "providers"):
	default:
		return "", wrong
	}
	return "/" + strings.Join(parts, "/"), nil
}

func control(r rune) bool { return r < ' ' || r == 0x7f }

// subscriptionOf returns the id of the Azure subscription in a parsed scope.
func subscriptionOf(scope string) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(scope, "/")[len("subscriptions/"):], "/")
	return id
}
