// Package remoteadmin forwards requests of the admin API from node to node over the peer port.
//
// It owns the peer method for such requests, and collects the status of all nodes. It does no authorization. Every
// user of a node's admin socket may send requests, and the certificates of the peer port admit only members of the
// cluster. All goroutines end before the call that started them returns.
package remoteadmin
