// Package kv is the deterministic state machine of one Raft group, kept in a Pebble
// database: values and their revisions, expiry, and the memory of decided requests that
// makes retries harmless.
//
// It owns the database directory and every byte in it. It must never know a clock, the
// network, random numbers, the operating system or raft: time comes from the stamps in
// the entries, files from a vfs.FS, so that the same entries make the same state on every
// node, whenever and wherever they are applied.
//
// # Tables
//
// The first byte of a Pebble key is its table. Numbers in keys are 8 bytes, big-endian.
//
//	01                           meta: format version, applied index and term, revision counter, cluster time, number of keys, rolling hash, client queue bounds
//	02 store 00 key              data: revision, expiry, content type, value (record.go)
//	03 expiry store 00 key       due index: one entry for every data record that expires, nothing else
//	04 origin                    origins: name, low-water mark, when it was last seen
//	05 origin index              remembered results: all that one entry decided for one origin, and the mark it left
//	06 scope id                  client results: number, expiry, fingerprint of the request, result
//	07 number                    client queue: client results in the order in which they expire
//	08 term                      terms: index of the last command of that term, for the newest 1024
//
// Tables 02, 03, 06 and 07 exist a second time, as 12, 13, 16 and 17: the meta record says
// which set is live, and a restore fills the other one (stage.go). A database that has had
// to do with a restore has format version 2; one whose group may hold log entries above the first
// version has format version 3.
//
// A store name has no NUL, so stores whose names are prefixes of each other stay apart
// and the keys of one store are in the byte order of the keys.
//
// # Invariants
//
//   - One Apply is one Pebble batch and ends with the meta record; a step of a restore is a
//     batch of its own. Pebble's own log is
//     off: after a crash the database holds the state at some earlier applied index,
//     whole, and the Raft log brings it forward to the identical state and hash.
//   - The state after an entry depends on the entries alone, not on how they were grouped
//     into Apply calls, nor on restarts between them.
//   - Cluster time is the greatest stamp seen. It never goes back.
//   - Revisions come from one counter that every set and every registration raises by
//     one. A number is never given twice, also not after a delete or to an origin.
//   - A record with an expiry was stored before that time, or restored. A set that is already due
//     leaves its key absent, but has its revision.
//   - A key whose expiry is at or before cluster time does not exist for any reader or
//     condition. It is still counted and stored until KindExpire removes it or a write
//     replaces it.
//   - A request is decided against the state that the requests before it left, also
//     those of the same entry, and is applied whole or not at all.
//   - A sequence number of an origin is decided at most once: above the mark its result
//     is remembered, at or below the mark it is refused as stale.
//   - Nothing of an undecodable entry, or of any entry after it, is applied.
//
// # Failures
//
// A machine that meets an entry it cannot apply halts: its state is right and can still
// be read, flushed and copied. A machine whose storage failed or whose data is damaged,
// even if only a read found that, is broken: it answers nothing but errors, because it
// must neither lead nor be copied to another node. Both are told to Options.Fatal. A full
// disk is neither at first: flushes are tried again, and only when they go on failing is
// the machine broken. Nothing is lost by any of them that the Raft log has.
//
// # Goroutines
//
// Apply, Raise and SetApplied are for one goroutine at a time; everything else is safe
// for any number. The package starts goroutines only to call Options.Fatal and to run
// Pebble's Open and Close, which a failing disk may keep from returning; Pebble runs its
// flushes and compactions until Close.
package kv
