// Package locks implements locks with an expiry and a fencing token in one Raft group. It owns the format of their
// records, the requests that change them, and the Keeper. The Keeper ends expired locks and queues callers that wait
// for a lock.
//
// A lock has two records in kv.LockStore, which are created and removed together:
//
//   - The owner record contains the owner. It is written only when the lock is acquired. Its revision is the token of
//     the lock. So the token stays the same while the lock is owned, and every later owner gets a greater one.
//   - The expiry record contains the expiry. A renewal writes only this record.
//
// Invariants:
//
//   - Only a log entry ends a lock. That entry names the token. To end an expired lock, it also names the revision
//     of the expiry record. So an expiry has no effect if a renewal precedes it in the log.
//   - The leader measures the time until a lock expires on its monotonic clock. The measurement starts when the
//     leader has applied the newest acquisition or renewal. A new leader starts the measurement again. So a lock never
//     ends early. But each change of the leader can make the lock last longer, by at most its expiry plus the time of
//     the election.
//   - A write that checks a token is applied only if the lock has that token at the write's position in the log. So
//     a former owner of a lock changes nothing, however long it was paused.
//
// A Keeper on the leader has one timer per lock. It has goroutines only while locks change.
package locks
