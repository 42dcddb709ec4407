package api

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// CallLog logs one line for each API request, without its body, query and headers. It is safe for concurrent use. A
// nil *CallLog logs nothing.
type CallLog struct {
	log  *slog.Logger
	rule atomic.Pointer[CallLogRule]
}

// CallLogRule says what a CallLog logs.
type CallLogRule struct {
	Enabled       bool
	ObfuscateURLs bool // the name of the endpoint instead of the path
	OmitHealth    bool // no health probes
}

// NewCallLog returns a CallLog that logs nothing yet.
func NewCallLog(log *slog.Logger) *CallLog {
	c := &CallLog{log: log}
	c.Set(CallLogRule{})
	return c
}

// Set replaces the rule.
func (c *CallLog) Set(r CallLogRule) { c.rule.Store(&r) }

// LoggedCall describes one request.
type LoggedCall struct {
	Method    string // verb and path, or full gRPC method
	Endpoint  string // verb and pattern of the endpoint, or full gRPC method
	UserAgent string
	Code      int   // HTTP status or gRPC code
	Size      int64 // bytes of the answer's body; -1 = unknown
	Health    bool  // it is a health probe
	Begun     time.Time
}

// HTTP logs a request of the HTTP API.
func (c *CallLog) HTTP(call func() LoggedCall) { c.write("HTTP API Called", call) }

// GRPC logs a call of the gRPC API.
func (c *CallLog) GRPC(call func() LoggedCall) { c.write("gRPC API Called", call) }

func (c *CallLog) write(message string, make func() LoggedCall) {
	if c == nil {
		return
	}
	rule := c.rule.Load()
	if !rule.Enabled {
		return
	}
	call := make()
	if call.Health && rule.OmitHealth {
		return
	}
	method := call.Method
	if rule.ObfuscateURLs {
		method = call.Endpoint
	}
	values := []any{"method", method, "code", call.Code, "duration_ms", time.Since(call.Begun).Milliseconds()}
	if call.UserAgent != "" {
		values = append(values, "useragent", Shorten(call.UserAgent))
	}
	if call.Size >= 0 {
		values = append(values, "size", call.Size)
	}
	c.log.Info(message, values...)
}
