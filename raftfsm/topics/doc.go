// Package topics implements publish and subscribe on the Raft groups. It owns the records of topics, messages and
// consumer groups. It has three parts:
//
//   - The Keeper delivers messages. It works at the leader.
//   - The Broker publishes and subscribes from any node. It calls the Keepers.
//   - The Admin shows and changes topics for operators, from any node.
//
// All messages that are published to a topic are in one Raft group, its home, which depends on the name of the topic. A
// dead letter is in the Raft group of the original message. So a topic may have parts in several Raft groups. A message
// is settled for a consumer group when the group has acknowledged it, or has moved it to a dead-letter topic, or when
// the message has expired. Each part of a topic has its own records in kv.TopicStore:
//
//   - message: offset, cluster time, expiry, payload. The state machine chooses the offset, see command.OpAppend.
//   - group: the cursor of a consumer group, and the offsets below it that are delivered and not settled.
//   - parked: a message that a group gets later, because an attempt has failed, the time of its delivery has not come,
//     or an earlier message with its key fails. A message also gets a parked record before a transaction acknowledges
//     it.
//   - id: the id of a message, for deduplication. It expires with the window.
//   - policy, count, full: what the topic keeps, how much it has, and whether it refuses messages.
//   - source: the name of a topic whose dead letters this topic has received.
//
// Invariants:
//
//   - A publish is one request, applied whole or not at all. Its messages have ascending offsets in the order of the
//     request. A message with a greater offset was stored later. Offsets are never reused.
//   - A message with an offset up to the cursor of a group is settled, or its offset is in the record of the group,
//     or it is parked. A message above the cursor is not settled. So a new leader delivers exactly the messages that
//     are not settled.
//   - A request that updates the record of a group names the previous revision of that record. The same request
//     changes the parked records of the group. So at most one leader settles a message, and only once. There are two
//     exceptions. A transaction that acknowledges a message removes only the parked record. An operator who removes
//     a group removes first the record of the group, and then the parked records.
//   - The events of a state transaction are appended in its request, so they are stored if and only if it is applied.
//   - A request that replaces a parked record, or that moves its message to another topic, names the revision of the
//     record. A transaction that acknowledges the message also names this revision. So if a transaction acknowledges a
//     message, the message cannot also fail, move to another topic or be acknowledged by another transaction.
//   - A dead letter is appended in the request that settles the message.
//   - The parked record has the number of failed attempts and the time of the next attempt. A restart or a new leader
//     changes neither.
//   - Messages with the same key are delivered to a group one at a time, in the order of their offsets. A message that
//     waits for its next attempt holds up the later messages with its key. A message that its publisher has delayed
//     holds up no other message until its time has come. It then takes its place in the order. In a group with
//     concurrency 1, all messages count as messages with the same key.
//   - A key whose first message fails holds up no other key. When maxOpen messages of a group are neither settled nor
//     parked, the leader parks the messages that wait behind failing ones, although they have had no attempt. The
//     leader keeps only their offsets in memory, 8 bytes for each of up to maxTailed messages. See tail.go for the
//     order in which these messages come back.
//   - Before messages are delivered, a majority confirms that this server leads. So a deposed leader delivers nothing
//     that a later leader has settled.
//   - Retention removes only messages that every group has settled. Other messages stay until their TTL ends or an
//     operator removes them. A removal by retention names the revision of the count of the topic. A request that
//     creates a group or moves a group back stores the count again, so a removal that was proposed before that request
//     is refused. The group therefore gets every message after its start that is still stored when the record of the
//     group is written.
//   - A group with a time to live ends by itself only if its record says that the group was not used for that long.
//     The request that ends the group names the revision of the record, and also removes the parked records.
//   - The state machine reads no clock. The leader compares the times of messages with cluster time.
//
// A Keeper that has no subscribers and no new messages has at most one timer. The timer fires when the oldest
// message of a topic has reached its retention, or a group may have reached its time to live.
package topics
