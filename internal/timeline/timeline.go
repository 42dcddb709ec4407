// Package timeline marks the stages of requests and log entries in the execution trace of the Go runtime. A trace is
// recorded by go test -trace, runtime/trace or /debug/pprof/trace. While no trace is recorded, a mark costs one
// atomic load.
//
// The package owns the category and the names of the marks. It has no goroutines and no state.
package timeline

import (
	"context"
	"runtime/trace"
	"strconv"
)

// Category is the category of all marks in the trace.
const Category = "quorate"

// Stages of a request. Each is marked on the goroutine that serves the request.
const (
	Request   = "request"   // the HTTP handler begins
	Queued    = "queued"    // the leader puts a write into the queue of the proposer
	Answered  = "answered"  // the goroutine that queued the write runs again; with the index of the entry
	Forward   = "forward"   // a node that does not lead begins to send a write to the leader
	Forwarded = "forwarded" // the goroutine that sent the write runs again
	Response  = "response"  // the HTTP handler ends
)

// Stages of a log entry. Each is marked with the index of the entry.
const (
	Encoded  = "encoded"  // the leader has the content of the entry and is about to write it
	Written  = "written"  // the entry is on the disk of the leader
	Stored   = "stored"   // the entry is on the disk of a follower
	Applying = "applying" // the state machine of a server begins to apply the entry, nearly always first on the leader
	Applied  = "applied"  // the state machine has applied the entry
	Settled  = "settled"  // the leader begins to give results to the requests of the entry
)

// Mark records that the request of the calling goroutine has reached a stage.
func Mark(stage string) {
	if trace.IsEnabled() {
		trace.Log(context.Background(), Category, stage)
	}
}

// MarkEntries records that the log entries from first to last have reached a stage.
func MarkEntries(stage string, first, last uint64) {
	if trace.IsEnabled() {
		trace.Log(context.Background(), Category, stage+" "+strconv.FormatUint(first, 10)+" "+
			strconv.FormatUint(last, 10))
	}
}
