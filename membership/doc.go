// Package membership maintains the list of nodes by gossip, with hashicorp/memberlist. The list has the state of each
// node (alive, left or failed) and its facts. Facts are what a node reports about itself.
//
// The package owns the names and facts of nodes, the rules for refusing a node, the immutable Roster, joining, and
// graceful leaving. Other packages send their own data through a Channel and read the Roster. The package does not
// depend on Raft, stores, applications or the HTTP API.
//
// Names. A node has a node id, which survives restarts, and a boot id, which is new in every process. One run of a node
// is called an incarnation. Its gossip name is "node id/boot id". A restarted node is therefore never mistaken for its
// previous process, and its address may change.
//
// The Roster shows one incarnation per node id: the earliest one that is alive. When this incarnation no longer
// answers, a later one replaces it. If this incarnation still answers, two nodes use the same node id, and the later
// incarnation is refused.
//
// Refusals. A node ignores nodes with another label. The label is the name of the cluster. Two groups of nodes with the
// same label do not merge if their cluster ids, partition counts or node ids contradict each other. Both sides count
// the refusal, and log it at most once a minute for each reason.
//
// Protection. If keys are configured, each packet is encrypted for one incarnation of one node. That incarnation
// accepts the packet only once, so a recorded packet cannot be replayed. The encryption of memberlist would not prevent
// such a replay. Streams use mutual TLS. The caller supplies keys and certificates.
//
// Goroutines. Close waits for these goroutines and for every connection:
//
//   - one joins and rejoins
//   - one resolves duplicate node ids
//   - one logs refusals
//   - one logs changes and deletes old members
//   - the transport has one for packets and one that accepts connections
//   - with keys, the encryption has one for packets, one for accepted streams, and one for each handshake
//
// Close cannot wait for the goroutines of memberlist. After Close, a probe of memberlist may still run for up to eight
// times Timing.ProbeInterval. The probe uses nothing outside memberlist.
package membership
