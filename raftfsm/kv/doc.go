// Package kv is the deterministic state machine of one Raft group, stored in a Pebble database. It stores values with
// their revisions and times of expiry. It also stores the results of requests, so that a retry returns the result of
// the first attempt.
//
// The package owns the database directory and every byte in it. The same log entries produce the same state on every
// node. Therefore the package uses no clock, no network and no random numbers. The time comes from the timestamps of
// the log entries. All access to files goes through a vfs.FS.
//
// # Tables
//
// The first byte of a Pebble key is its table. Numbers in keys are 8 bytes, big-endian.
//
//	01                           meta: format version, applied index and term, revision counter, cluster time,
//	                             number of keys, rolling hash, client queue bounds, restores, format of the log,
//	                             hashes of the records (meta.go)
//	02 store 00 key              data: revision, expiry, content type, value (record.go)
//	03 expiry store 00 key       due index: the key of every data record that expires; no value
//	04 origin                    origins: name, low-water mark, when it was last seen
//	05 origin index              results: those of one entry for one origin, and the low-water mark after the entry
//	06 scope id                  client results: number, expiry, fingerprint of the request, result
//	07 number                    client queue: client results in the order in which they expire
//	08 term                      terms: index of the last command of that term, for the newest 1024
//	09 store 00 prefix           histories: bounds, floor, newest segment (history.go)
//	0a history revision          changes
//	0b history revision          closed segments of histories
//
// Tables 02, 03, 06 and 07 exist a second time, as 12, 13, 16 and 17. The meta record names the set in use. A restore
// fills the other set (stage.go).
//
// A store name contains no NUL byte. So the keys of two stores do not mix, even if one name is a prefix of the other.
// The keys of one store are in byte order.
//
// # Invariants
//
// State:
//
//   - Apply writes its changes and the meta record in one Pebble batch, except that a step of a restore has batches of
//     its own.
//   - Pebble's own log is off. After a crash, the database has the complete state at some earlier applied index.
//     Replaying the Raft log from there leads to the identical state and hash.
//   - The state after an entry depends only on the entries. Restarts do not change it, and neither does the grouping of
//     entries into calls of Apply.
//   - If an entry cannot be decoded, neither that entry nor any later one is applied.
//
// Numbers and time:
//
//   - Cluster time is the greatest stamp of all applied entries. It never goes back.
//   - Revisions and numbers of origins come from one counter, which never goes back. No number is used twice, not even
//     after a delete.
//   - The counter rises by one for a set, an append, a registration, the start of a history, and a removal in a prefix
//     with a history. A restore or a call of Raise adds more.
//   - A key whose expiry is at or before cluster time does not exist for any reader or condition. The database stores
//     and counts it until KindExpire removes it or a write replaces it.
//   - A set with an expiry in the past leaves the key absent but uses a revision. Only a record from a backup can be
//     stored after its expiry.
//
// Requests:
//
//   - A request is applied completely or not at all. Its conditions see the changes of all earlier requests, including
//     those of the same entry.
//   - A request with a sequence number of an origin (a registered source of requests) is applied or refused only once.
//     Its result is stored while the number is above the origin's low-water mark. A request at or below that mark is
//     refused as stale.
//   - A change of a key whose prefix has a history is written to that history in the same batch.
//
// # Failures
//
// A machine halts at an entry that it cannot apply. Its state is correct and can still be read, flushed and copied. A
// machine breaks when its storage fails permanently or its data is damaged. A broken machine returns only errors, and
// its server must neither lead nor send a copy of the data. Both failures are reported to Options.Fatal. On a full
// disk, flushes are retried; the machine breaks only if they keep failing. No failure loses anything that is in the
// Raft log.
//
// # Goroutines
//
// Only one goroutine at a time may call Apply, Raise or SetApplied. All other methods are safe for concurrent use. The
// package starts goroutines only to call Options.Fatal, to run Pebble's Open, Close and Compact, and to start
// compactions that are waiting. Pebble runs flushes and compactions in its own goroutines until Close.
package kv
