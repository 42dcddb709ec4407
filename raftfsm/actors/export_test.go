package actors

import "github.com/quorate/quorate/raftfsm/command"

// EndForTest returns the request that ends the session of a host.
func EndForTest(h Host, revision uint64) *command.Request {
	h.Revision = revision
	return end(&h)
}
