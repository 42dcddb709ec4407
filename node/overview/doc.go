// Package overview collects the data about a node that the web console shows, and requests the same data from the other
// nodes of the cluster. The package owns the list of the metrics that the console shows.
//
// The package keeps no state. All goroutines end before the call that started them returns.
package overview
