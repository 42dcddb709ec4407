package schema

import (
	"encoding/json"
	"time"
)

// CallFilter selects API requests of a node. Empty fields select all.
type CallFilter struct {
	App    string        // the application whose API was called
	Route  string        // text that the route contains, ignoring case
	Trace  string        // the trace id
	Failed bool          // only failed calls
	Least  time.Duration // only calls that took at least this long
}

// CallLine is one line of the stream of API requests. The first line has no field, and shows that the stream reports
// all later requests. Every other line has exactly one field.
type CallLine struct {
	Call  *LiveCall       `json:"call,omitempty"`
	Lost  uint64          `json:"lost,omitempty"`  // number of earlier calls that were dropped, because too many came
	Error json.RawMessage `json:"error,omitempty"` // encoded like an error body; only in the last line
}

// LiveCall is an API request that has ended. It has no key, no value and no header except the trace id.
type LiveCall struct {
	At          time.Time `json:"at"` // when the request ended
	TookMS      float64   `json:"tookMs"`
	App         string    `json:"app"`      // application whose API was called
	Protocol    string    `json:"protocol"` // HTTP or gRPC
	Route       string    `json:"route"`    // verb and pattern of the endpoint, or full gRPC method
	Code        int       `json:"code"`     // HTTP status, 0 = aborted; or gRPC code
	Failed      bool      `json:"failed"`
	Consistency string    `json:"consistency,omitempty"` // level that the answer reports
	Trace       string    `json:"trace,omitempty"`       // trace id of the caller
}
