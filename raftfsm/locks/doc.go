// Package locks implements locks with an expiry and a fencing token in one Raft group. It owns the format of their
// records and the requests that change them. Its Keeper ends expired locks and queues the callers that wait for a lock.
//
// A lock has two records in kv.LockStore, which are created and removed together:
//
//   - The owner record contains the owner. It is written only when the lock is acquired. Its revision is the token of
//     the lock. The token stays the same while the lock is owned, and every later owner gets a greater one.
//   - The expiry record contains the expiry. A renewal writes only this record.
//
// Invariants:
//
//   - A lock ends only by a log entry that names its token. The entry that ends an expired lock also names the revision
//     of the expiry record, so it has no effect if a renewal precedes it in the log.
//   - A lock never expires early. The leader measures the time on its monotonic clock, from the moment when it applied
//     the newest acquisition or renewal. A new leader starts the measurement again. Each change of the leader can
//     therefore make the lock last longer, by at most its expiry plus the time of the election.
//   - A write that checks a token is applied only if the lock has that token at the write's position in the log. A
//     former owner of a lock therefore changes nothing, however long it was paused.
//
// A Keeper on the leader has one timer per lock. It runs goroutines only while locks change.
package locks
