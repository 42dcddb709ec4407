// Package due stores due work and hands it out on time. Due work is the common name for jobs and reminders. A tick is
// one occurrence of due work. The Keeper at the leader of a Raft group hands out the ticks of that group, each of them
// at least once and never early.
//
// Work has a name and a Home. The Home consists of the kind of target (KindJob or KindReminder), a store and a key
// prefix. The name is unique within the Home. The work is in the same Raft group as the keys of that store with that
// prefix, so one log entry can change keys and work together. Work has three records in kv.DueStore:
//
//   - the spec: schedule, policy and the bytes for the target. It is written when the work is put. Its revision
//     identifies the work, and changes with an overwrite.
//   - the state: how many ticks are done, when the current tick is due, and how often it has failed.
//   - the index record. Its key contains the due time, so the index records of a Home are ordered by due time. Its
//     value is only a version number.
//
// Invariants:
//
//   - A request that writes or removes a state fails if the stored state is not the expected one. The same request
//     writes or removes the index record. Each state therefore has exactly one index record, with its due time.
//   - A tick is due until a log entry records that it is done, dropped or moved. If a leader fails after it has handed
//     out a tick, the next leader hands out the same tick again, with the same revision and number.
//   - An overwrite replaces the state, and a removal deletes it. A late acknowledgement for the earlier work therefore
//     has no effect.
//   - Before the leader reads and delivers a tick, a majority confirms its leadership. After an overwrite or a removal
//     was acknowledged, no delivery of the earlier work begins, even at a deposed leader.
//   - The state machine of the group (package kv) reads no clock. The leader compares due times with cluster time, and
//     writes the next due time.
//   - Several missed ticks count as one. After that tick, the work continues with its schedule.
//
// The node calls Keeper.Deliver once for each kind, with a Deliverer. Keeper.Put, Keeper.Remove and Keeper.Run change
// work; they must be called at the leader of the group that stores the work. Callers that change due work as part of
// their own request use PutOps and RemoveOps. Read and Parse read work.
//
// A Keeper on the leader has one timer for all work, and at most maxBuffer index records in memory for each Home. It
// runs one goroutine for each tick that is being delivered, up to maxUnderWay goroutines. A Keeper without due work has
// no timer and no goroutine.
package due
