// Package transport wraps the transport between Raft and the network. Guard protects against defects and limitations
// of hashicorp/raft. Witness detects lost data: before this server takes part in its group, Witness asks the other
// servers for the newest term, vote, commit index and acknowledged entries that they have recorded for this server. It
// compares them with what is on this server's disk.
//
// The package owns no files. It never uses the state machine and does not interpret the commands in log entries.
//
// Goroutines: a Guard has one from Start to Close. A Witness runs on the goroutine that calls Run, and has one more
// for each query in flight.
package transport
