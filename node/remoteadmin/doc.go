// Package remoteadmin forwards requests of the admin API from node to node over the peer port, and collects the status
// of all nodes. The package owns the peer method for such requests.
//
// The package does not authorize requests. This is safe because every user of a node's admin socket may send any
// request, and the certificates of the peer port admit only members of the cluster. All goroutines end before the call
// that started them returns.
package remoteadmin
