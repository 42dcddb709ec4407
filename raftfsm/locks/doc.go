// Package locks implements locks with an expiry and a fencing token in one Raft group. It owns the form of their
// records, the requests that change them, and the Keeper. The Keeper ends expired locks and queues callers that wait
// for a lock.
//
// A lock has two records in kv.LockStore, which are always written and removed together. The first record has the
// owner. It is written only when the lock is acquired, and its revision is the token of the lock. So the token does
// not change while the lock is owned, and every later owner gets a greater one. The second record has the expiry. A
// renewal writes it again.
//
// Invariants:
//
//   - Only a log entry frees a lock; no clock does. That entry must name the token. To end an expired lock, it must
//     also name the revision of the second record. So an expiry has no effect if a renewal comes before it in the log.
//   - The leader counts the whole expiry on its monotonic clock. It starts when it has seen the newest acquisition or
//     renewal applied, and a new leader starts again. So a lock never ends early. It may last longer by at most one
//     expiry and the time of the election.
//   - A write with a check of a token is applied only if the lock has that token at the position of the write in the
//     log. So a former owner of a lock, however long it was paused, changes nothing.
//
// While its server leads the group, a Keeper has one timer per lock. It has no goroutine while nothing changes.
package locks
