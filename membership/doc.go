// Package membership knows which nodes there are, what each says about itself, and whether
// it is alive. It speaks the gossip protocol of hashicorp/memberlist.
//
// It owns the names and facts of nodes, their form on the wire, the rules by which a node is
// refused, the immutable Roster, joining and re-joining, and graceful leaving. It must never
// know raft, stores, applications or the HTTP API: other packages put their own data into
// the gossip through a Channel, and read the Roster.
//
// Names. A node has a node id that outlives restarts, and a boot id that is new in every
// run; gossip knows it as "node id/boot id". A restart is therefore never taken for the dead
// node it replaces, and may use another address. The Roster shows one life per node id: the
// first that is alive, until it no longer answers and a later one takes its place. Two lives
// that both answer are a duplicate id, and the newcomer is refused.
//
// Refusals. Nodes of another label are invisible. Under one label, nodes whose cluster ids,
// partition counts or node ids contradict each other are not merged: both sides say so in
// the log, at most once a minute for each, and count it.
//
// Protection. With keys, every packet is sealed for the one life of the one node it is sent
// to, and taken once; streams go over mutual TLS. So what was recorded cannot be repeated,
// which the encryption of memberlist would not prevent. Where keys and certificates come
// from is not this package's affair.
//
// Goroutines: one joins and re-joins, one settles disputes about node ids, one logs
// refusals, one logs changes and forgets old members; the transport has one for packets and
// one for connections, the protection as many again and one for each handshake, and
// memberlist has its own. Close waits for all of ours and for every
// connection. Memberlist itself does not wait: one probe may outlive Close by at most
// Timing.ProbeInterval times eight; it touches nothing outside memberlist.
package membership
