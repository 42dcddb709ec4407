// Package membership maintains the list of nodes, what they report about themselves (their facts), and their state:
// alive, left or failed. It uses the gossip protocol of hashicorp/memberlist.
//
// It owns the names and facts of nodes, their encoding, the rules by which a node is refused, the immutable Roster,
// joining and rejoining, and graceful leaving. Other packages send their own data through a Channel and read the
// Roster. The package knows nothing of Raft, stores, applications and the HTTP API.
//
// Names. A node has a node id, which stays the same over restarts, and a boot id, which is new in every process.
// Together they identify an incarnation of the node. Its gossip name is "node id/boot id". So a restarted node is never
// mistaken for its previous process, and it may have another address. The Roster has one incarnation per node id: the
// first one that is alive. When that incarnation no longer answers, a later one replaces it. If two incarnations
// answer, two nodes use the same node id, and the later one is refused.
//
// Refusals. A node ignores nodes with another label. Two parts of a network with the same label do not merge if their
// cluster ids, partition counts or node ids contradict each other. Both sides count the refusal, and log it at most
// once a minute for each reason.
//
// Protection. If keys are configured, the sender encrypts every packet for one incarnation of one node. That
// incarnation accepts the packet only once, so a recorded packet cannot be replayed. The encryption of memberlist does
// not prevent this. Streams use mutual TLS. The caller supplies keys and certificates.
//
// Goroutines. Four goroutines join and rejoin, resolve duplicate node ids, log refusals, and log changes and delete old
// members. The transport has one goroutine for packets and one for accepting connections. With keys, the encryption has
// one more for packets, one for accepted streams, and one for each handshake. Close waits for all of these and for
// every connection. Close cannot wait for the goroutines of memberlist: one probe may run after Close, for at most
// eight times Timing.ProbeInterval. The probe uses nothing outside memberlist.
package membership
