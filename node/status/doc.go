// Package status reports the state of a node: whether its start is complete, what works now, and the data that `quorate
// status` and `quorate members` show. The package owns the rules for readiness.
//
// The package also collects the reports of other parts of the node. It changes nothing and has no goroutines.
package status
