// Package doctor has the checks of `quorate doctor`, for a running node and for a node that has not been started. The
// package owns the checks, and the limits at which a check warns or fails.
//
// The checks change nothing, except that one writes a temporary file to measure the speed of the disk. Every goroutine
// ends before the call that started it returns.
package doctor
