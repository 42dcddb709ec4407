// Package workflowtest has the test suite that every workflow engine must pass. It also has a worker that a test drives
// by hand, and an in-memory engine for the tests of the APIs. The package owns the instances of the engine in memory.
//
// The timers of the in-memory engine run in goroutines of package time. Memory.Close stops them.
package workflowtest
