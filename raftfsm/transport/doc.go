// Package transport wraps the transport between Raft and the network. Guard protects against defects and limitations of
// hashicorp/raft. Witness detects lost data before this server takes part in its group. It compares the server's disk
// with the newest term, vote, commit index and acknowledged entries that the other servers have recorded about it.
//
// The package owns no files. It does not use the state machine and does not interpret the commands in log entries.
//
// Goroutines: one runs for each Guard from Start to Close, and one more for each announcement in flight. A Witness runs
// on the goroutine that calls Run, and starts one more for each query in flight.
package transport
