// Package topics implements publish and subscribe on the Raft groups. It owns the records of topics, messages and
// consumer groups. It has three parts:
//
//   - The Keeper delivers messages. It works at the leader.
//   - The Broker publishes and subscribes from any node. It calls the Keepers.
//   - The Admin shows and changes topics for operators, from any node.
//
// A topic may have parts in several Raft groups:
//
//   - A published message is in the home of the topic, a Raft group that depends on the name of the topic.
//   - An event that a state transaction publishes is in the Raft group of the state.
//   - A dead letter is in the Raft group of the original message.
//
// Each part has its own records in kv.TopicStore:
//
//   - message: offset, cluster time, expiry, payload. The state machine chooses the offset, see command.OpAppend.
//   - group: the cursor of a consumer group, and the offsets below it that are delivered and not settled.
//   - parked: a message that a group gets later. Either an attempt has failed, or the delivery time has not come, or an
//     earlier message with the same key fails. A message also gets a parked record before a transaction acknowledges
//     it.
//   - id: the id of a message, for deduplication. It expires with the window.
//   - policy, count, full: what the topic keeps, how much it has, and whether it refuses messages.
//   - source: the name of a topic whose dead letters this topic has received.
//
// A message is settled for a consumer group when the group has acknowledged it, when it was moved to a dead-letter
// topic, or when it has expired.
//
// Many invariants use revisions: a request that names the revision of a record fails if the record has changed since.
//
// Invariants of records:
//
//   - A publish is one request, applied whole or not at all. Its messages have ascending offsets in the order of the
//     request. A message with a greater offset was stored later. Offsets are never reused.
//   - A message up to the cursor of a group is settled, unless its offset is in the record of the group or it is
//     parked. A message above the cursor is not settled. So a new leader delivers exactly the messages that are not
//     settled.
//   - A request that updates the record of a group names the revision of that record, and also changes the parked
//     records of the group. So at most one leader settles a message, and only once.
//   - Two kinds of requests change parked records and not the record of the group: a transaction that acknowledges a
//     message, and a request that removes the parked records of a group after an operator has removed the group.
//   - The events of a state transaction are appended in its request, so they are stored if and only if the transaction
//     is applied.
//   - A request names the revision of a parked record if it replaces the record, moves the message to another topic, or
//     acknowledges the message in a transaction. So once a transaction has acknowledged a message, the message cannot
//     fail, move to another topic or be acknowledged by another transaction.
//   - A dead letter is appended in the request that settles the message.
//   - The parked record has the number of failed attempts and the time of the next attempt. A restart or a new leader
//     changes neither.
//   - Retention removes only messages that every group has settled. Other messages stay until their TTL ends or an
//     operator removes them.
//   - A removal by retention names the revision of the topic's count. A request that creates a group or moves a group
//     back stores the count again, so that removals that were proposed earlier fail. The group therefore gets every
//     message after its start that is still stored when the record of the group is written.
//   - A group with a time to live ends by itself only if its record says that the group was not used for that long. The
//     request that ends the group names the revision of the record, and also removes the parked records.
//   - The state machine reads no clock. The leader compares the times of messages with cluster time.
//
// Invariants of delivery:
//
//   - Messages with the same key are delivered to a group one at a time, in the order of their offsets. A message that
//     waits for its next attempt holds up the later messages with its key. In a group with concurrency 1, all messages
//     count as messages with the same key.
//   - A message that its publisher has delayed holds up no other message until its time has come. It then takes its
//     place in the order.
//   - A key whose first message fails holds up no other key. When maxOpen messages of a group are neither settled nor
//     parked, the leader parks those that wait behind failing ones. It keeps only their offsets in memory, at most
//     maxTailed. See tail.go for the order in which they come back.
//   - Before messages are delivered, a majority confirms that this server leads. So a deposed leader delivers nothing
//     that a later leader has settled.
//
// A Keeper that has no subscribers and no new messages has at most one timer. The timer fires when the oldest message
// of a topic has reached its retention, or a group may have reached its time to live.
package topics
