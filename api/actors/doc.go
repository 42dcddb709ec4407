// Package actors hosts the actors of the applications of this node, and calls actors anywhere in the cluster.
//
// It owns the turns of actors. An actor handles one call at a time, in the order of arrival. The only exception is a
// reentrant call, which belongs to the call chain of the running turn and need not wait for that turn. A turn lasts
// until the application has answered, even if its caller has disconnected.
//
// It also owns the activations of this node and their lease. Without a valid lease, a host starts no turn and returns
// no answer to a caller.
//
// The interface Directory hides the directory of actors, which decides which host owns an actor. A Host has one
// goroutine while its application hosts actors, and one for each turn. Without actors the package has no goroutines.
package actors
