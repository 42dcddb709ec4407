// Package placement decides which servers vote in a Raft group and which server leads it.
//
// Plan returns the next safe change of a group. Its input is the desired number of voters, the configuration, and which
// servers are alive. Explain returns why each server votes or not. Leaders spreads the leaders of several groups over
// the servers.
//
// The package owns only this policy. It does not use raft, gossip, the network or the clock. Every input is a
// parameter, including the time, so the same input gives the same result on every node. It starts no goroutines and
// keeps no state. All functions are safe for concurrent use. The tests of Plan have a table with a case for each rule.
//
// A voter is lost in three cases:
//
//   - An operator has removed its server.
//   - Its disk was replaced, so its node runs under a newer server id.
//   - Its server failed, left or became a sidecar, and the settling time (Limits.Settle) has passed since then.
//
// Plan tries the following rules in this order. It returns the change of the first rule that applies:
//
//  1. If no voter leads the group, or if no majority of the voters is alive, nothing changes.
//  2. The leader transfers leadership if an operator has removed it, or if its disk is nearly full and another voter's
//     disk is not. The other rules never take the vote of the leader.
//  3. A lost voter loses its vote once another server has become a voter in its place, or once there are more voters
//     than desired.
//  4. A non-voter that keeps up becomes a voter if there are too few voters or a voter is lost.
//  5. A voter that an operator has removed loses its vote, even if no other server can take its place.
//  6. Non-voters that cannot come back, or that have failed for too long, are removed from the group.
//  7. A server that is alive but not in the configuration is added as a non-voter, unless an operator has removed it.
//  8. If there are more voters than desired, one of them becomes a non-voter, but never the leader. Plan prefers a
//     voter that is not alive, then a voter that is far behind the leader, and then the voter with the highest id.
//
// A server that left gracefully is expected to come back. It stays in the group, and only its vote moves to another
// server. A dead voter keeps its vote while no other server can take its place. Plan avoids even numbers of voters
// above two, because four voters survive no more failures than three. A group of two servers has two voters.
package placement
