// Package actors hosts the actors of the applications of this node, and calls actors anywhere in the cluster.
//
// The package runs the turns of actors. A turn is the execution of one call. An actor executes one call at a time, in
// the order of arrival. The exception is a reentrant call: it belongs to the call chain of the running turn, so it does
// not wait for that turn. A turn lasts until the application has answered, even if the caller has disconnected.
//
// The package also manages activations and leases. An activation is an actor that this node owns. Each host has a
// lease. Without a valid lease, a host starts no turn and returns no answer to a caller.
//
// The directory of actors decides which host owns an actor. The package uses it through the interface Directory.
//
// While its application hosts actors, a Host has one main goroutine and one goroutine for each turn. It also starts
// short-lived goroutines for renewals and transfers. Without actors, the package has no goroutines.
package actors
