// Package actors hosts the actors of the applications of this node, and calls actors anywhere in the cluster.
//
// It owns the turns of actors. A turn is the execution of one call. An actor executes one call at a time, in the
// order of arrival, with one exception. A reentrant call belongs to the call chain of the running turn and does not
// wait for it. A turn lasts until the application has answered, even if its caller has disconnected.
//
// It also owns the activations of this node and their lease. Without a valid lease, a host starts no turn and
// returns no answer to a caller.
//
// The directory of actors decides which host owns an actor. The package uses the directory through the interface
// Directory. While its application hosts actors, a Host has one main goroutine, one goroutine for each turn, and
// short-lived goroutines for renewals and transfers. Without actors the package has no goroutines.
package actors
