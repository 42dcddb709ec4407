// Package transport wraps the transport between Raft and the network. Guard protects against defects and limitations
// of hashicorp/raft. Witness detects lost data before this server takes part in its group. It asks the other servers
// what they have recorded about this server: the newest term, vote, commit index and acknowledged entries. It compares
// the answers with this server's disk.
//
// The package owns no files. It does not use the state machine and does not interpret the commands in log entries.
//
// Goroutines: a Guard has one from Start to Close, and one more for each announcement in flight. A Witness runs on the
// goroutine that calls Run, and has one more for each query in flight.
package transport
