// Package actors implements the directory of actors in one Raft group: which host owns which actor. It owns the form of
// its records, the requests that change them, and the Keeper. The Keeper runs at the leader. It places actors and ends
// the sessions of hosts that have stopped renewing them.
//
// A host is one application on one node, from its registration to the end of its session. It has a session record,
// which is written once and removed when the session ends, and a description, which may change. An activation is the
// record of an actor that a host owns. Its epoch is its revision. All records are in kv.LockStore: a backup does not
// contain them, and a restore removes them.
//
// Invariants:
//
//  1. An actor has at most one activation record, and the epochs of its records only grow. Only an entry that checks
//     in itself that the new host has a session, and that the earlier host has none, replaces a record.
//  2. A write of actor state names the epoch and the session of its activation. It is applied only if at its position
//     in the log the record has that epoch and the session has not ended. So two activations never both write.
//  3. Activate returns a position in the log at or after the entry of the activation. A replica that has applied that
//     position has applied every write of earlier activations, because later ones are refused.
//  4. A renewal counts from the moment at which the host sent it, and is valid for Lease. The leader answers it after a
//     majority has confirmed its term, and ends the session after Patience without another one. A new leader counts
//     afresh. Once it has proposed the end of a session, it refuses renewals in this term, whatever the outcome,
//     because the proposal may be applied late. A host that starts no turn and relays no answer without a valid lease
//     does neither after its session has ended, if clocks differ in speed by at most 10 %.
//  5. A host starts no activation of an actor while an earlier turn of the actor still runs in its application. Package
//     api/actors keeps this invariant.
//  6. After a request to release an activation, a host activates the actor again only when an answer says that the
//     release is done, or in another session. A request without an answer may be applied late, when the host serves the
//     actor with the same epoch again. Package api/actors keeps this invariant, too.
//
// While its server leads, a Keeper has one timer per host. It has no goroutine while nothing happens, and nothing at
// all until the first call of a host.
package actors
