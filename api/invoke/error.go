package invoke

import (
	"net/http"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// The reasons that Quorate defines for failed calls. They add to its reasons for failed state requests.
const (
	ReasonUnreachable = "unreachable" // the application has not received the call
	ReasonCircuitOpen = "circuit_open"
)

func malformed(text string) *api.Error {
	return &api.Error{Kind: api.Malformed, Code: api.CodeDirectInvoke, Message: text}
}

// MethodMissing returns the error of a call without a method.
func MethodMissing() error {
	return malformed("the method is missing: call /v1.0/invoke/<app id>/method/<method>, or any path with " +
		"the header dapr-app-id")
}

// Failed returns the error for a call whose answer could not be forwarded. target is the target of the call, and err is
// the reason.
func Failed(target string, err error) error {
	return &api.Error{Kind: api.Failed, Code: api.CodeDirectInvoke, Cause: err,
		Message: "failed to invoke, id: " + api.Shorten(target) + ", err: " + fault.Text(err)}
}

// failed returns the public error of a call that failed. hop names the hop that failed.
func (a *attempts) failed(err error, hop string) *api.Error {
	if e, ok := err.(*api.Error); ok { //nolint:errorlint // it is public already
		return e
	}
	e := &api.Error{
		Code:    api.CodeDirectInvoke,
		Message: "failed to invoke, id: " + a.target.String() + ", err: " + fault.Text(err),
		Details: api.Details{Metadata: api.Attributes("appID", a.target.String(), "hop", hop)},
		Cause:   err,
	}
	switch fault.CodeOf(err) {
	case fault.NotFound:
		e.Kind, e.Details.Reason = api.Failed, api.ReasonNotFound
	case fault.Denied:
		e.Kind, e.Details.Reason = api.Denied, api.ReasonDenied
	case fault.TooLarge:
		e.Kind, e.Details.Reason = api.Malformed, api.ReasonTooLarge
	case fault.Unavailable:
		e.Kind, e.Details.Reason = api.Unavailable, ReasonUnreachable
	case fault.Overloaded:
		e.Kind, e.Details.Reason = api.Unavailable, ReasonCircuitOpen
	case fault.Timeout:
		e.Kind, e.Details.Reason = api.Timeout, api.ReasonTimeout
	case fault.Corrupt:
		e.Kind, e.Details.Reason = api.BadAnswer, api.ReasonBadAnswer
	case fault.Indeterminate:
		e.Kind, e.Details.Reason = api.Indeterminate, api.ReasonIndeterminate
	default:
		e.Kind, e.Details.Reason = api.Failed, api.ReasonInternal
	}
	return e
}

// statusClass returns the value of the label status in metrics.
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
