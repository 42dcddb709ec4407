// Package status reports the state of a node: whether the start is complete, what works now, and the data that
// `quorate status` and `quorate members` show.
//
// It owns readiness, and collects the reports of other parts of the node. It only reads. It has no goroutines.
package status
