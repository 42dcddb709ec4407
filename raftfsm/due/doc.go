// Package due hands out work at the time it is due, at least once and never early. It owns the records of due work in
// one Raft group, their index by due time, the grammar of schedules, and the Keeper. The Keeper runs at the leader.
//
// Work has a Home and a name that is unique there. The home says which kind of target it has (KindJob, KindReminder),
// and next to which keys it is stored: the group of the keys of (Store, Prefix). So one entry of the log can change
// due work together with these keys. Work has three records in kv.DueStore:
//
//   - the spec: schedule, policy and the bytes for the target. It is written when the work is put. Its revision
//     identifies the work, and is different after an overwrite.
//   - the state: how many ticks are done, when the present one is due, how often it has failed.
//   - the index record. Its key has the due time, so the records of a home are ordered by due time. It has no content.
//
// Invariants:
//
//   - Every request that writes a state or removes it names the revision of the previous state, and replaces the index
//     record in the same request. So there is exactly one index record for each state, with the time of that state.
//   - A tick is due until an entry of the log says that it is done, dropped or moved. So a tick that was handed out by
//     a leader that has failed is handed out again, with the same revision and number.
//   - An overwrite and a removal write the state too. So the acknowledgement of a tick of earlier work does nothing.
//   - Before it reads and delivers a tick, the leader lets a majority confirm that it leads. So no delivery begins
//     after an overwrite or a removal was acknowledged, not even at a leader that was deposed and does not know it.
//   - The machine reads no clock. The leader compares due times with cluster time, and writes the next one.
//   - However many ticks were missed, the work has one tick, and then goes on with its schedule.
//
// How to use it: the node calls Keeper.Deliver once for each kind, with a Deliverer. Work is put, removed and run by
// Keeper.Put, Keeper.Remove and Keeper.Run at the leader of its group. PutOps and RemoveOps return the operations for
// callers that change due work in a request of their own. Read and Parse read work.
//
// While its server leads the group, a Keeper has one timer for all work, at most one page of index records in memory
// for each home, and one goroutine for each tick that is under way. Their number is bounded. Without due work it has
// no timer and no goroutine.
package due
