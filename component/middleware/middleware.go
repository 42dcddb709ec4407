// Package middleware defines the contract of HTTP middleware. A middleware is a component that inspects each request of
// the HTTP API before the request is routed.
//
// The package owns the interface Filter, the type Refusal for refused requests, and the type Instance for opened
// components. It starts no goroutines.
package middleware

import (
	"net/http"
)

// Filter inspects requests before they are routed. It may change the path and the headers of a request. If it returns
// an error, the request is refused. To set the status and the text of the response, the error must be a *Refusal.
// Implementations must be safe for concurrent use.
type Filter interface {
	Filter(r *http.Request) error
}

// Refusal is the answer to a request that a Filter refuses.
type Refusal struct {
	Status  int
	Code    string // errorCode of the answer
	Message string
	Header  http.Header // additional headers of the answer; may be nil
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// Instance is one opened middleware with the settings of its component file.
type Instance struct {
	Name   string // component name
	Type   string // in lower case
	Filter Filter
	Close  func() error
}
