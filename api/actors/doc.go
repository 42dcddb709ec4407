// Package actors hosts the actors of the applications of this node, and calls actors anywhere in the cluster.
//
// It owns the turns: an actor has one call at a time, in the order of arrival, except that reentrant calls of the same
// chain pass. It owns the activations of this node, and their lease: without a valid lease a host starts no turn and
// relays no answer. A new activation of an actor waits until an earlier turn of it on this node has ended, even if the
// caller of that turn has gone.
//
// The directory of actors, which decides who owns an actor, is behind the interface Directory. A Host has one goroutine
// while its application hosts actors, and one for each turn. Without actors the package has no goroutines.
package actors
