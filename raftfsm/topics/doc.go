// Package topics implements publish and subscribe on the Raft groups. It owns the records of topics, messages and
// consumer groups, the Keeper, which delivers messages at the leader, and the Broker, which uses the Keepers from any
// node.
//
// All messages that are published to a topic are in one Raft group, its home, which depends on the name of the topic.
// A dead letter is in the Raft group of the message that it was. So a topic may have a part in several Raft groups.
// Each part has records of its own in kv.TopicStore:
//
//   - message: offset, cluster time, expiry, payload. The state machine chooses the offset, see command.OpAppend.
//   - group: the cursor of a consumer group, and the messages below it that are delivered and not settled.
//   - parked: a message that a group gets later, because an attempt has failed or its time has not come.
//   - id: of a message, for deduplication. It expires with the window.
//   - policy, count, full: what the topic keeps, how much it has, and whether it refuses messages.
//
// Invariants:
//
//   - A publish is one request, applied whole or not at all. Its messages have ascending offsets in the order of the
//     request. A message with a greater offset was stored later. Offsets are never reused.
//   - A message with an offset up to the cursor of a group is settled, or its offset is in the record of the group,
//     or it is parked. A message above the cursor is not settled. So a new leader delivers exactly the messages that
//     are not settled.
//   - Every request that changes the record of a group names its previous revision, and changes the parked records of
//     the group in the same request. So at most one leader settles a message, and only once.
//   - A dead letter is appended in the request that settles the message.
//   - Attempts and the time of the next one are in the parked record. A restart or a new leader changes neither.
//   - Two messages with the same key are never delivered to a group at the same time, and not in another order than
//     that of their offsets. A message that waits for its next attempt holds up the later ones of its key. In a group
//     with concurrency 1, all messages have the same key.
//   - Before messages are delivered, a majority confirms that this server leads. So a deposed leader delivers nothing
//     that a later one has settled.
//   - Retention removes only messages that every group has settled. Other messages end only with their TTL.
//   - The state machine reads no clock. The leader compares the times of messages with cluster time.
//
// A Keeper that has no subscribers and no new messages has at most one timer, which ends when the oldest message of a
// topic has reached its retention.
package topics
