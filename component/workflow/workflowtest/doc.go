// Package workflowtest has the suite of tests that every workflow engine passes. It also has a worker that a test
// drives by hand, and an engine in memory for the tests of the APIs.
//
// It owns the instances of the engine in memory. The timers of this engine run on goroutines of package time; Close
// stops them.
package workflowtest
