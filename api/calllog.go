package api

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// CallLog logs one line for each API request. The line has no query, no body, and no header except the user agent.
// CallLog also passes each request to the open watches (see Watch). It is safe for concurrent use. A nil *CallLog logs
// nothing.
type CallLog struct {
	log     *slog.Logger
	mu      sync.Mutex // serializes changes of readers
	readers atomic.Pointer[callReaders]
}

// callReaders holds the logging rule and the open watches of a CallLog. It is immutable: a change replaces the whole
// value.
type callReaders struct {
	rule    CallLogRule
	watches []*CallWatch
}

// The protocols of calls.
const (
	protocolHTTP = "HTTP"
	protocolGRPC = "gRPC"
)

// CallLogRule says what a CallLog logs.
type CallLogRule struct {
	Enabled       bool
	ObfuscateURLs bool // log the pattern of the endpoint instead of the path
	OmitHealth    bool // do not log health probes
}

// NewCallLog returns a CallLog that writes to log. It logs nothing before Set.
func NewCallLog(log *slog.Logger) *CallLog {
	c := &CallLog{log: log}
	c.readers.Store(&callReaders{})
	return c
}

// Set replaces the rule about what c logs.
func (c *CallLog) Set(r CallLogRule) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readers.Store(&callReaders{rule: r, watches: c.readers.Load().watches})
}

// LoggedCall describes one request.
type LoggedCall struct {
	App       string // application whose API was called
	Method    string // verb and path, or full gRPC method
	Endpoint  string // verb and pattern of the endpoint, or full gRPC method
	UserAgent string
	Code      int   // HTTP status or gRPC code
	Size      int64 // bytes of the answer's body; -1 = unknown
	Health    bool  // the call is a health probe
	Begun     time.Time
	Level     string // consistency that the answer reports; empty = none
	Parent    string // traceparent of the request; empty = none
}

// HTTP logs a request of the HTTP API.
func (c *CallLog) HTTP(call func() LoggedCall) { c.write(protocolHTTP, call) }

// GRPC logs a call of the gRPC API.
func (c *CallLog) GRPC(call func() LoggedCall) { c.write(protocolGRPC, call) }

func (c *CallLog) write(protocol string, describe func() LoggedCall) {
	if c == nil {
		return
	}
	to := c.readers.Load()
	if !to.rule.Enabled && len(to.watches) == 0 {
		return
	}
	call := describe()
	if len(to.watches) > 0 && !call.Health {
		show(to.watches, protocol, &call)
	}
	if to.rule.Enabled && !(call.Health && to.rule.OmitHealth) {
		c.line(protocol, to.rule, &call)
	}
}

// line logs a call.
func (c *CallLog) line(protocol string, rule CallLogRule, call *LoggedCall) {
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
	c.log.Info(protocol+" API Called", values...)
}
