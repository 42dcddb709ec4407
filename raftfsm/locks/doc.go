// Package locks implements locks with an expiry and a fencing token in one Raft group. It owns the form of their
// records, the requests that change them, and the Keeper, which ends locks that have expired and queues callers that
// wait for a lock.
//
// A lock is two records of kv.LockStore, which are always written and removed together. The first has the owner. Its
// revision is the token of the lock. It is written once, when the lock is acquired, so the token stays the same for as
// long as the lock is owned, and every later owner gets a greater one. The second record has the expiry. A renewal
// writes it again.
//
// Invariants:
//
//   - A lock is free because the log says so, never because a clock says so. Only an entry that names the token, and
//     for an expiry also the revision of the second record, removes a lock. So an expiry has no effect if a renewal
//     comes before it in the log.
//   - The leader counts the whole expiry on its monotonic clock from the moment at which it has seen the newest
//     acquisition or renewal applied. A new leader counts from the beginning. So a lock never ends early. It may last
//     longer by at most one expiry and the time of the election.
//   - A write with a check of a token is applied only if the lock has that token at the position of the write in the
//     log. So a former owner of a lock, however long it was paused, changes nothing.
//
// A Keeper has a timer for each lock that its server's group has while the server leads. It has no goroutine while
// nothing changes.
package locks
