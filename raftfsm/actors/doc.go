// Package actors implements the directory of actors in one Raft group: which host owns which actor. It owns the format
// of its records, the requests that change them, and the Keeper, which runs at the leader. The Keeper places actors
// and ends the sessions of hosts that have stopped renewing them.
//
// A host is one application on one node, from its registration to the end of its session. It has a session record,
// which is written once and removed when the session ends, and a description, which may change. An activation is the
// record of an actor that a host owns. Its epoch is its revision. All records are in kv.LockStore: a backup does not
// contain them, and a restore removes them.
//
// Invariants:
//
//  1. An actor has at most one activation record, and the epochs of its records only grow. A log entry replaces an
//     activation record only if the new host has a session and the old host has none. The entry itself checks both.
//  2. A write of actor state names the epoch and the session of its activation. It is applied only if the activation
//     record has that epoch, and the session has not ended, at the write's position in the log. So two activations of
//     an actor can never both write.
//  3. Activate returns a position in the log at or after the entry of the activation. A replica that has applied that
//     position has applied every write of earlier activations, because later writes of them are refused.
//  4. A renewal is valid for Lease from the moment at which the host sent it. The leader answers a renewal after a
//     majority has confirmed its term, and ends the session if no other renewal arrives within Patience. A new leader
//     waits for Takeover instead, from its first use of the directory. Every renewal that an earlier leader answered
//     was sent before that. Once a leader has proposed the end of a session, it refuses renewals of that session for
//     the rest of its term, because the proposal may be applied late. A host must not start a turn or relay an answer
//     without a valid lease. A host that obeys this rule does neither after the end of its session, if clocks differ
//     in speed by at most 10 %.
//  5. A host starts no activation of an actor while an earlier turn of the actor still runs in its application.
//     Package api/actors ensures this.
//  6. After a host has requested the release of an activation, it activates the actor again only after an answer that
//     the release is done, or in another session. A release without an answer may be applied late, when the host
//     serves the actor again with the same epoch. Package api/actors ensures this, too.
//
// While its server leads, a Keeper has one timer per host. It has goroutines only while it executes changes, and uses
// no resources before the first call of a host.
package actors
