// Package overview collects the data that the web console shows about a node, and requests the same data from the
// other nodes of the cluster.
//
// It owns the choice of the metrics that the console shows. It keeps no state. All goroutines end before the call
// that started them returns.
package overview
