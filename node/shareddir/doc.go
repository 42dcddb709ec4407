// Package shareddir lets several nodes of one user on one host share a data directory without configuration. The
// first node holds the directory and is a server. The others attach to it as sidecars over loopback. When the holder
// ends, one of the sidecars takes over the directory: its process opens a server in addition to the sidecar.
//
// It owns the choice of the process that opens the directory, the notes (small files) with which the nodes find each
// other, and the directories of sidecars.
//
// Goroutines: one that waits for the directory, and then one that waits for the end of the server. Close ends both.
package shareddir
