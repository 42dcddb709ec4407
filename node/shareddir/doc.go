// Package shareddir lets several nodes of one user on one host share a data directory without configuration. The first
// node holds the directory and is a server. The other nodes attach to it as sidecars over loopback. When the holder
// ends, the process of one sidecar takes over the directory. This process then runs a server in addition to its
// sidecar. The package owns the choice of the process that opens the directory, the notes (small files) with which the
// nodes find each other, and the directories of sidecars.
//
// A sidecar has a goroutine that waits for the directory. After a takeover, another goroutine waits until the new
// server must be closed. Close ends both.
package shareddir
