// Package workflows runs workflows on the Raft groups. It owns the records of workflow instances. It has two parts:
//
//   - The Keeper works at the leader of a group. It applies the rules of package turn.
//   - The Broker works on any node. It calls the Keepers.
//
// All records of an instance are in one Raft group. An application has a fixed number of buckets, which are spread
// evenly over the groups. A hash of the instance id selects the bucket. The store kv.WorkflowStore has these records:
//
//   - head: status, times, counters and idempotency keys of an instance.
//   - chunk: the events that one turn has added to the history.
//   - inbox: an event that no turn has consumed.
//   - task: an activity without a result.
//   - due: a timer, a scheduled start, or the end of a retention, by time.
//   - outbox: a message for another instance.
//   - list: the instances of a bucket in the order of their creation.
//   - session: a node with workers.
//
// Invariants:
//
//   - Every entry that changes an instance replaces its head, on the condition that the head still has the revision
//     that the proposer has read. So the entries of an instance form one chain.
//   - A turn is one entry. It consumes events of the inbox, adds its events to the history, and stores its
//     activities, timers and messages. If the entry is refused, none of this happens.
//   - The leader's memory is a cache of the records. After an entry with an unknown outcome, the records are read
//     again.
//   - A worker may get a turn with events that are not in the log yet. They are stored before the worker's answer or
//     in the same entry, and only then do their senders get an answer.
//   - A repeated request is stored once, because the head has the newest idempotency keys.
//   - An activity has one result. The entry with the result removes the record of the activity. The key of this record
//     contains the birth of the entry that scheduled the activity (see change.birth).
//   - No two streams have the same activity at the same time. The leader keeps the leases of activities in memory. A
//     new leader does not know them, and hands out older activities only after all nodes with a session record have
//     reported theirs, or after sessionLife.
//   - A node regularly gets a proof that the leader still knows its session. After proofLife without a proof, the node
//     ends its streams that have activities. proofLife is shorter than sessionLife, so these streams end before
//     another node gets the activities.
//   - A message is removed from the outbox after its target has stored the message in the log, or has found that the
//     message has no effect.
//   - Events wait in the log. While there are no workers, nothing is handed out, nothing polls, and no instance is in
//     memory.
//
// One goroutine runs for each busy instance, and none for an idle instance. On a node with workers, one goroutine runs
// for each group.
package workflows
