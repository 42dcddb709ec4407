// Package locks implements locks with an expiry and a fencing token in one Raft group. It owns the format of their
// records, the requests that change them, and the Keeper. The Keeper ends expired locks and queues callers that wait
// for a lock.
//
// A lock has two records in kv.LockStore, which are always written and removed together. The first record contains the
// owner. It is written only when the lock is acquired, and its revision is the token of the lock. So the token does
// not change while the lock is owned, and every later owner gets a greater token. The second record contains the
// expiry. Each renewal writes only this record again.
//
// Invariants:
//
//   - A lock ends only through a log entry, never through a clock. That entry must name the token. To end an expired
//     lock, it must also name the revision of the second record. So an expiry has no effect if a renewal comes before
//     it in the log.
//   - The leader measures the expiry of a lock on its monotonic clock. It starts when it has applied the newest
//     acquisition or renewal, and a new leader starts again. So a lock never ends early. It may last longer by at most
//     one expiry and the time of the election.
//   - A write with a check of a token is applied only if the lock has that token at the write's position in the log.
//     So a former owner of a lock changes nothing, however long it was paused.
//
// While its server leads the group, a Keeper has one timer per lock. It has goroutines only while locks change.
package locks
