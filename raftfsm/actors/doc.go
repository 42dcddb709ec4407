// Package actors implements the directory of actors in one Raft group: which host owns which actor. It contains the
// format of the directory's records, the requests that change them, and the Keeper. The Keeper runs on the leader. It
// places actors, advises hosts how to spread them, and ends the sessions of hosts that no longer renew them.
//
// A host is one application on one node, from its registration until its session ends. It has two records: the session
// record, which is written once and removed when the session ends, and the description, which may change. An activation
// is the record of an actor that a host owns. The revision of this record is the epoch of the activation. All records
// are in kv.LockStore, so a backup does not contain them, and a restore removes them.
//
// Invariants:
//
//  1. An actor has at most one activation record, and each new record has a higher epoch. A log entry replaces the
//     record only if the new host has a session, and the old host has none or has requested the transfer. The entry
//     itself checks the two sessions or, for a transfer, the epoch and the new session.
//  2. A write of actor state contains the epoch and the session of its activation. The state machine applies the write
//     only if the activation record has this epoch and the session has not ended. So two activations of an actor can
//     never both write.
//  3. Activate returns a log position that is not before the entry of the activation. A replica that has applied this
//     position has applied every write of earlier activations, because the entry of the new activation makes the state
//     machine refuse any further write of an earlier one.
//  4. A host starts turns and relays answers only while it has a lease. The lease never outlasts the session, provided
//     that clocks differ in speed by at most 10 %. Each answered renewal gives the host a lease, which ends when the
//     time Lease has passed since the host sent the renewal. The leader answers only after a majority has confirmed its
//     term. The leader ends a session after Patience without a renewal, and a new leader ends it after Takeover without
//     a first renewal. Both times are longer than Lease. Once a leader has proposed the end of a session, it refuses
//     renewals of that session for the rest of its term, because the proposal may be applied late.
//  5. A host starts no activation of an actor while an earlier turn of the actor still runs in its application.
//     Package api/actors ensures this.
//  6. After a host has requested the release of an activation, it activates the actor again only once the release is
//     confirmed, or in another session. Otherwise the release could be applied late, when the host already serves the
//     actor again with the same epoch. Package api/actors ensures this. A transfer to another host counts as a release.
//     Only the owner requests a transfer, and only when no turn of the actor runs.
//
// A Keeper on the leader has one timer per host. It has goroutines only while it executes changes, and uses no
// resources before the first call of a host.
package actors
