package workflows

import (
	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// bad returns the error of a request that is wrong.
func bad(code, text string) *api.Error {
	return &api.Error{Kind: api.Malformed, Code: code, Message: text}
}

// failed converts an error of the engine to a public error, or returns nil for nil. The message is the given sentence
// followed by the text of err.
func failed(code, sentence string, err error) error {
	if err == nil {
		return nil
	}
	kind, reason := api.StoreFailure(err)
	switch fault.CodeOf(err) {
	case fault.Conflict, fault.NotFound, fault.Invalid: // Dapr answers with code 500
		kind, reason = api.Failed, ""
	}
	return &api.Error{Kind: kind, Code: code, Message: sentence + fault.Text(err), Cause: err,
		Details: api.Details{Reason: reason}}
}

// named is like failed, but returns a different error for an instance that does not exist. That error has the kind
// NotFound and names the id.
func named(code, sentence, id string, err error) error {
	if fault.Is(err, fault.NotFound) {
		return &api.Error{Kind: api.NotFound, Code: api.CodeInstanceNotFound, Cause: err,
			Message: "unable to find workflow with the provided instance ID: " + api.Shorten(id)}
	}
	return failed(code, sentence, err)
}
