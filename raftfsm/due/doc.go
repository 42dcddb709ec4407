// Package due hands out work at the time when it is due, for example jobs and reminders. A tick is one occurrence of
// such work. The package hands out every tick at least once and never early. It owns the records of due work in one
// Raft group, their index by due time, and the syntax of schedules. Its Keeper runs at the leader.
//
// Work has a name and a Home. The Home is the kind of target (KindJob, KindReminder), a store and a key prefix. The
// name is unique within the Home. Due work is in the same Raft group as the keys of that store with that prefix. So
// one log entry can change these keys and the work together. Work has three records in kv.DueStore:
//
//   - the spec: schedule, policy and the bytes for the target. It is written when the work is put. Its revision
//     identifies the work, and changes with an overwrite.
//   - the state: how many ticks are done, when the current tick is due, and how often it has failed.
//   - the index record. Its key has the due time, so the records of a Home are ordered by due time. Its value is
//     only a version number.
//
// Invariants:
//
//   - Every request that writes or removes a state has a condition: the previous state has the known revision, or
//     does not exist. The request also writes or removes the index record. So there is exactly one index record for
//     each state, with the time of that state.
//   - A tick is due until a log entry records that it is done, dropped or moved. So if a leader fails after it has
//     handed out a tick, the next leader hands out the tick again, with the same revision and number.
//   - An overwrite replaces the state, and a removal removes it. So a late acknowledgement for the earlier work has
//     no effect.
//   - Before the leader reads and delivers a tick, a majority confirms that it leads. So no delivery begins after an
//     overwrite or a removal was acknowledged, not even at a leader that was deposed without knowing it.
//   - The state machine reads no clock. The leader compares due times with cluster time, and writes the next due
//     time.
//   - Several missed ticks count as one. After that tick, the work continues with its schedule.
//
// The node calls Keeper.Deliver once for each kind, with a Deliverer. Keeper.Put, Keeper.Remove and Keeper.Run change
// work; they must be called at the leader of the group that stores the work. PutOps and RemoveOps return the
// operations for callers that change due work as part of their own request. Read and Parse read work.
//
// A Keeper on the leader has one timer for all work, and at most maxBuffer index records in memory for each Home. It
// has one goroutine for each tick that is being delivered, and the number of such ticks is bounded. A Keeper without
// due work has no timer and no goroutine.
package due
