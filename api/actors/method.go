package actors

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/internal/fault"
)

// CleanMethod is like ParseMethod, except that the given method is not escaped. CleanMethod first escapes each segment
// between slashes. For example, "a b/c" becomes "a%20b/c".
func CleanMethod(method string) (string, error) {
	parts := strings.Split(method, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return ParseMethod(strings.Join(parts, "/"))
}

// ParseMethod checks the escaped method of a call and removes its dot segments. The method may end with a query. The
// rules are those of invoke.ParseMethod and invoke.CheckQuery. ParseMethod also rejects the paths of reminders and
// timers, because a caller could use them to forge ticks. All errors are *api.Error.
func ParseMethod(escaped string) (string, error) {
	path, query, mark := strings.Cut(escaped, "?")
	method, err := invoke.ParseMethod("/" + path)
	switch {
	case err != nil:
	case invoke.CheckQuery(query) != nil:
		err = invoke.CheckQuery(query)
	case isCallback(method.Decoded):
		err = fault.New(fault.Invalid, "actors.ParseMethod", "the method is the path of a reminder or a timer")
	case mark:
		return method.Path[1:] + "?" + query, nil
	default:
		return method.Path[1:], nil
	}
	return "", &api.Error{Kind: api.Malformed, Code: api.CodeActorInvoke, Cause: err,
		Message: "error invoke actor method: the method " + strconv.Quote(api.Shorten(escaped)) + " is not valid: " +
			fault.Text(err)}
}

// isCallback reports whether an application could read the decoded path of a method as the path of a reminder or a
// timer. Such a method must be refused, because a caller could use it to forge ticks.
func isCallback(path string) bool {
	parts := strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == '\\' })
	if len(parts) < 2 {
		return false
	}
	first, _, _ := strings.Cut(parts[0], ";")
	return strings.EqualFold(first, CallbackReminder) || strings.EqualFold(first, CallbackTimer)
}

// checkMethod checks that a method, which may come from another node, is a valid result of ParseMethod. If not, it
// returns fault.Invalid. Otherwise it returns the path to which the access rules apply: the actor type, followed by the
// method.
func checkMethod(kind, method string) (invoke.MethodPath, error) {
	parsed, err := ParseMethod(method)
	if err != nil || parsed != method || decoded(method) == "" {
		return invoke.MethodPath{}, fault.New(fault.Invalid, "actors.Call", "the method "+
			strconv.Quote(api.Shorten(method))+" is not valid")
	}
	path, _, _ := strings.Cut(method, "?")
	return invoke.ParseMethod("/" + url.PathEscape(kind) + "/" + path)
}

// DecodedMethod returns the method of a call without escape sequences and without the query. Applications that are not
// called over HTTP get this form.
func (c *Call) DecodedMethod() string {
	if c.Callback != "" {
		return c.Method
	}
	return decoded(c.Method)
}

// decoded returns the decoded path of a result of ParseMethod.
func decoded(method string) string {
	path, _, _ := strings.Cut(method, "?")
	if text, err := url.PathUnescape(path); err == nil {
		return text
	}
	return path
}
