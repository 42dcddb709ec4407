// Package placement decides which servers vote in a Raft group and where leaders sit.
//
// It owns the policy, and nothing but the policy: Plan turns what is wanted, what is
// configured and who is alive into the next safe change, Explain says for every server why
// it votes or not, Leaders spreads the leaders of several groups. It must never know raft,
// gossip, the network or the clock: everything, the time included, comes in as a value, so
// that the same input gives the same answer on every node. It has no goroutines and no
// state; all functions are safe for concurrent use. The table of its tests is the policy.
//
// The rules, in the order in which they are tried; the first that applies makes the one
// change that is planned:
//
//  1. Without a leader that votes, and without a majority of voters alive, nothing changes.
//  2. A leader that is to be removed hands leadership over first; nothing else ever touches
//     the leader's vote.
//  3. A lost vote is given up once it has a successor, or once there are more votes than
//     wanted. A vote is lost when its server was removed by an operator; when the disk behind
//     it was replaced (the node runs under a newer server id); or when the server has failed,
//     left or turned into a sidecar longer ago than the settling time.
//  4. A replica that keeps up becomes a voter while votes are missing or lost.
//  5. A server that an operator removed loses its vote even without a successor.
//  6. Replicas that cannot come back are removed from the group.
//  7. A server that the group does not know is added as a replica, without a vote.
//  8. Voters beyond the wanted number become replicas: those that are not alive first, then
//     the highest id; never the leader.
//
// A server that left gracefully is expected back: it stays in the group whatever happens,
// and only its vote moves to a successor. A dead server without a successor keeps its vote.
// Even numbers of voters above two are avoided, because they survive no more failures than
// one voter fewer; two servers are two voters.
package placement
