// Package redisimport copies the state that another runtime of this API left in Redis.
//
// It owns the form of that data: which keys are state, how values, versions and expiry
// are kept; and the account of what was copied and what was not, and why. It must never
// know how a node is reached: what it reads goes to a Target. It only ever reads from
// Redis. While Run runs it has one goroutine that walks the keys, and some that copy.
package redisimport
