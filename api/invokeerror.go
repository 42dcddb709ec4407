package api

import (
	"net/http"

	"github.com/quorate/quorate/internal/fault"
)

// The reasons for failed calls that Quorate defines, in addition to those for state.
const (
	ReasonUnreachable = "unreachable" // surely not received by the application
	ReasonCircuitOpen = "circuit_open"
)

func invokeMalformed(text string) *Error {
	return &Error{Kind: Malformed, Code: CodeDirectInvoke, Message: text}
}

// MethodMissing returns the error of a call without a method.
func MethodMissing() error {
	return invokeMalformed("the method is missing: call /v1.0/invoke/<app id>/method/<method>, or any path with " +
		"the header dapr-app-id")
}

// InvokeFailed returns the error of an answer that could not be forwarded.
func InvokeFailed(target string, err error) error {
	return &Error{Kind: Failed, Code: CodeDirectInvoke, Message: "failed to invoke, id: " + show(target) + ", err: " +
		fault.Text(err), cause: err}
}

// failed returns the public error of a call that failed. hop names the hop that failed.
func (a *attempts) failed(err error, hop string) *Error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // it is public already
		return e
	}
	e := &Error{
		Code:    CodeDirectInvoke,
		Message: "failed to invoke, id: " + a.target.String() + ", err: " + fault.Text(err),
		Details: Details{Metadata: attributes("appID", a.target.String(), "hop", hop)},
		cause:   err,
	}
	switch fault.CodeOf(err) {
	case fault.NotFound:
		e.Kind, e.Details.Reason = Failed, ReasonNotFound
	case fault.Denied:
		e.Kind, e.Details.Reason = Denied, ReasonDenied
	case fault.TooLarge:
		e.Kind, e.Details.Reason = Malformed, ReasonTooLarge
	case fault.Unavailable:
		e.Kind, e.Details.Reason = Unavailable, ReasonUnreachable
	case fault.Overloaded:
		e.Kind, e.Details.Reason = Unavailable, ReasonCircuitOpen
	case fault.Timeout:
		e.Kind, e.Details.Reason = Timeout, ReasonTimeout
	case fault.Indeterminate:
		e.Kind, e.Details.Reason = Indeterminate, ReasonIndeterminate
	default:
		e.Kind, e.Details.Reason = Failed, ReasonInternal
	}
	return e
}

// statusClass returns the label of an answer in metrics.
func statusClass(r *http.Response, err error) string {
	switch {
	case err != nil:
		return "error"
	case r == nil:
		return "none"
	}
	switch c := r.StatusCode / 100; c {
	case 1, 2, 3, 4, 5:
		return [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"}[c-1]
	}
	return "other"
}
