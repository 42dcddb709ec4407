package api

import (
	"context"
	"net/http"
)

// RequestTracer starts a trace span for each API request that concerns state, secrets, actors, jobs or configuration.
// Implementations are safe for concurrent use.
type RequestTracer interface {
	// Exports reports whether spans are sent anywhere. It must be cheap, because every request calls it before
	// describing its span.
	Exports() bool
	// StartRequest starts a span as a child of the traceparent in h. It returns nil if spans are sent nowhere.
	StartRequest(ctx context.Context, h http.Header, name string) RequestSpan
}

// RequestSpan is the span of one request.
type RequestSpan interface {
	// Set adds attributes: names and values in turn. It shortens long values.
	Set(attributes ...string)
	// Inject replaces the traceparent in h, so that the receiver's span is a child of this one.
	Inject(h http.Header)
	// End ends the span with the HTTP status of the answer, or 0, and the error of the request.
	End(status int, err error)
}

// Attributes of request spans, as in Dapr. The value of the attribute SpanSystem is the name of a building block, such
// as state.
const (
	SpanProtocol   = "dapr.protocol" // http or grpc
	SpanAPI        = "dapr.api"      // verb and path, or the gRPC method
	SpanStatus     = "dapr.status_code"
	SpanActor      = "dapr.actor" // type and id
	SpanSystem     = "db.system"
	SpanConnection = "db.connection_string" // the same as SpanSystem
	SpanStatement  = "db.statement"         // the same as SpanAPI
	SpanStore      = "db.name"
	SpanService    = "rpc.service"
	SpanPeer       = "net.peer.name"
)

// StoreAttributes returns the attributes of a request to a store. The parameter system is state or secrets.
func StoreAttributes(system, store, statement string) []string {
	return []string{SpanSystem, system, SpanConnection, system, SpanStatement, statement, SpanStore, store}
}
