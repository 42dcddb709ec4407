// Package redisimport copies the state that Dapr keeps in Redis into a store of Quorate.
//
// It owns two things: the data format that Dapr uses in Redis (which keys are state, and how
// values, versions and TTLs are stored), and the report of what was copied, what was not, and why.
// It reads from Redis and never writes to it. It writes to a Target, which hides how a node is
// reached. While Run runs, one goroutine scans the keys and several copy values.
package redisimport
