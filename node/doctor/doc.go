// Package doctor has the checks of `quorate doctor`. They look for problems that prevent a node from working, or may
// soon prevent it.
//
// It owns the checks and their limits, both for a running node and before a start. The checks change nothing, except
// that one of them writes a temporary file to measure the disk.
//
// All goroutines end before the call that started them returns.
package doctor
