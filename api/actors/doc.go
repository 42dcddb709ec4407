// Package actors hosts the actors of the applications of this node, and calls actors anywhere in the cluster.
//
// The package runs the turns of actors. A turn is the execution of one call. An actor executes one call at a time, in
// the order of arrival. Only a reentrant call does not wait for the running turn, because both belong to the same call
// chain. A turn lasts until the application has answered, even if the caller has disconnected.
//
// The package also manages the activations of this node, which are the actors that this node owns, and the lease of
// each host. Without a valid lease, a host starts no turn and returns no answer to a caller.
//
// The directory of actors decides which host owns an actor. The package uses the directory through the interface
// Directory. While its application hosts actors, a Host has one main goroutine and one goroutine for each turn. It also
// starts short-lived goroutines for renewals and transfers. Without actors, the package has no goroutines.
package actors
