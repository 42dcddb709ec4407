// Package actorhost connects the actors of this node with the replicated store and with other nodes. Package api/actors
// runs the actors. Package actorhost stores which application hosts each actor type, stores reminders, and carries
// calls to actors on other nodes. The package owns the records that name the application of each actor type, and the
// peer method for calls of actors.
//
// Goroutines: those of package api/actors. While actors are rebalanced, there are also short-lived goroutines.
package actorhost
