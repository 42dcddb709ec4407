// Package doctor has the checks of `quorate doctor`. They look for problems that prevent a node from working, or may
// soon prevent it.
//
// Some checks are for a running node, and some are for a node that has not been started. The package also defines the
// limits at which a check warns or fails. The checks change nothing, but one of them writes a temporary file to measure
// the speed of the disk.
//
// Every goroutine ends before the call that has started it returns.
package doctor
