// Package due hands out work at the time when it is due, for example jobs and reminders. It hands out every tick at
// least once and never early. It owns the records of due work in one Raft group, their index by due time, the syntax
// of schedules, and the Keeper, which runs at the leader.
//
// Work has a name and a Home. The Home is the kind of target (KindJob, KindReminder), a store and a key prefix. Within
// its Home, the name is unique. Due work is in the same group as the keys of its store with its prefix. So one log
// entry can change these keys and the work together. Work has three records in kv.DueStore:
//
//   - the spec: schedule, policy and the bytes for the target. It is written when the work is put. Its revision
//     identifies the work, and is different after an overwrite.
//   - the state: how many ticks are done, when the current tick is due, and how often it has failed.
//   - the index record. Its key has the due time, so the records of a Home are ordered by due time. It has no content.
//
// Invariants:
//
//   - Every request that writes a state or removes it names the revision of the previous state, and replaces the index
//     record in the same request. So there is exactly one index record for each state, with the time of that state.
//   - A tick is due until a log entry records that it is done, dropped or moved. So if a leader fails after it has
//     handed out a tick, the next leader hands out the tick again, with the same revision and number.
//   - An overwrite and a removal also write the state. So a late acknowledgement for the earlier work has no effect.
//   - Before the leader reads and delivers a tick, a majority confirms that it leads. So no delivery begins after an
//     overwrite or a removal was acknowledged, not even at a deposed leader that does not know it yet.
//   - The state machine reads no clock. The leader compares due times with cluster time, and writes the next due time.
//   - If several ticks were missed, the work has only one tick for all of them, and then continues with its schedule.
//
// The node calls Keeper.Deliver once for each kind, with a Deliverer. Keeper.Put, Keeper.Remove and Keeper.Run change
// work; they are called at the leader of its group. PutOps and RemoveOps return the operations for callers that change
// due work as part of their own request. Read and Parse read work.
//
// While its server leads the group, a Keeper has one timer for all work, at most one page of index records in memory
// for each Home, and one goroutine for each tick that is being delivered. The number of such ticks is bounded. Without
// due work a Keeper has no timer and no goroutine.
package due
