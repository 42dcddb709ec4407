// Package actorhost connects the actors of this node (package api/actors) with the replicated directory and with
// other nodes. It owns the records that name the application of each actor type, and the peer method for calls of
// actors. Its goroutines are those of package api/actors.
package actorhost
