// Package actors implements the directory of actors in one Raft group: which host owns which actor. It contains the
// format of the directory's records, the requests that change them, and the Keeper. The Keeper runs at the leader. It
// places actors, advises hosts how to spread them, and ends the sessions of hosts that have stopped renewing them.
//
// A host is one application on one node, from its registration to the end of its session. It has two records. The
// session record is written once and removed when the session ends. The description may change. An activation is the
// record of an actor that a host owns. The epoch of an activation is the revision of this record. All records are in
// kv.LockStore: a backup does not contain them, and a restore removes them.
//
// Invariants:
//
//  1. An actor has at most one activation record, and the epochs of its records only grow. A log entry replaces an
//     activation record only if the new host has a session. Also, the old host must have no session, or must have
//     requested the transfer. The entry itself checks the two sessions or, for a transfer, the epoch and the new
//     session.
//  2. A write of actor state contains the epoch and the session of its activation. When the write is applied, the state
//     machine checks that the activation record has this epoch and that the session has not ended. So two
//     activations of an actor can never both write.
//  3. Activate returns a log position that is not before the entry of the activation. A replica that has applied this
//     position has applied every write of earlier activations, because later writes of them are refused.
//  4. A host starts turns and relays answers only while it has a lease. It has no lease after the end of its
//     session, provided that clocks differ in speed by at most 10 %. Each answered renewal gives the host a lease. The
//     lease ends when the time Lease has passed since the host sent the renewal. The leader answers only after a
//     majority has confirmed its term. The leader ends a session after Patience without a renewal. A new leader ends a
//     session after Takeover without a first renewal. Both times are longer than Lease. If a leader has proposed the
//     end of a session, it refuses renewals of that session for the rest of its term, because the proposal may be
//     applied late.
//  5. A host starts no activation of an actor while an earlier turn of the actor still runs in its application.
//     Package api/actors ensures this.
//  6. A host that has requested the release of an activation activates the actor again only after the release was
//     confirmed, or in another session. Otherwise the release could be applied late, when the host already serves
//     the actor again with the same epoch. Package api/actors ensures this, too. A transfer to another host counts as
//     a release. Only the owner requests a transfer, when no turn of the actor runs.
//
// A Keeper on the leader has one timer per host. It has goroutines only while it executes changes, and uses no
// resources before the first call of a host.
package actors
