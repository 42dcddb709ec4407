package faulttest_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/lab/internal/labtest"
)

// mutant is a change of the product that violates a guarantee, and the name of the test that must detect it.
type mutant struct {
	file, old, broken string // old occurs in the file once
	test, rounds      string
	says              string // a regular expression for the output of the failing test
	more              []edit // further changes, if two checks enforce the guarantee
	in                string // folder of the package of the test; empty = this one, with the changed program
}

// edit is a change of one more file.
type edit struct{ file, old, broken string }

// edits returns all changes of a mutant.
func (m mutant) edits() []edit { return append([]edit{{m.file, m.old, m.broken}}, m.more...) }

// mutants returns the mutants. They show that the tests detect violations. Paths are relative to the module.
func mutants() map[string]mutant {
	const (
		lost            = "acknowledged writes are lost|is not linearizable"
		topicSimulation = "TestSimulation_TopicsKeepGuarantees"
		flowSimulation  = "TestSimulation_WorkflowsKeepGuarantees"
		broken          = "the history of .* has|gives activity .* while node|does not complete" // a workflow
	)
	return map[string]mutant{
		"a leader that reads without a confirmation": {
			"raftfsm/group/read.go", "if have >= need {\n\t\treturn nil\n\t}\n\tif r.confirm", "if have > 0 {\n" +
				"\t\treturn nil\n\t}\n\tif r.confirm",
			"TestLeader_PausedNeverServesStaleReads", "20", "answered a strong read with", nil, "",
		},
		"strong writes acknowledged without a quorum": {
			"raftfsm/store.go", `if w.consistency != state.Strong && w.requestID == "" && unconditional(req.Ops) {`,
			"if unconditional(req.Ops) {",
			"TestCampaign_ProcessesAndNetwork", "8", lost + "|and its repetition with", nil, "",
		},
		"requests that are done as often as they come": {
			"raftfsm/kv/clients.go", "case seen.expireAt <= w.meta.clock:", "case true:",
			"TestCampaign_ProcessesAndNetwork", "2", lost + "|was answered", nil, "",
		},
		"writes that a node sends again, done again": {
			"raftfsm/kv/origins.go", "seen, ok := o.results[id.Seq]\n\tif ok {", "seen, ok := o.results[id.Seq]\n" +
				"\tok = false\n\tif ok {",
			"TestWrite_ForwardedTwiceIsAppliedOnce", "6", "existed before it was created", nil, "",
		},
		"sessions that wait for nothing": {
			"raftfsm/read.go", "if r.session != nil {\n\t\tif reason",
			"if r.session != nil && r.session.Pos.Index == 0 {\n\t\tif reason",
			"TestCampaign_ProcessesAndNetwork", "2", "travels with its token", nil, "",
		},
		"own writes that are not waited for": {
			"raftfsm/read.go", "for _, s := range r.own {", "for _, s := range r.own[:0] {",
			"TestCampaign_ProcessesAndNetwork", "2", "stays without a token",
			// the session state of a node for its applications
			[]edit{{"api/sessions.go", "return s.join(requested, s.Token(app, trace))", "return requested"}}, "",
		},
		"a log that is not forced to the disk": {
			"raftfsm/raftlog/engine.go", "Options{Path: mine, BoltOptions: boltOptions()}",
			"Options{Path: mine, BoltOptions: boltOptions(), NoSync: true}",
			"TestSingleNode_SurvivesPowerLoss/boltdb", "3", lost + "|does not serve", nil, "",
		},
		"a leader that speaks on while its disk hangs": {
			"raftfsm/transport/guard.go", "d := g.log.Stalled()", "d := 0 * g.log.Stalled()",
			"TestCluster_ReplacesALeaderWhoseDiskHangs", "1", "kept its place|had just begun to hang", nil, "",
		},
		"eventual writes acknowledged before they are anywhere": {
			"raftfsm/write.go", "\t\ta, sure, err := r.send(ctx, gid, req, ack, term)\n",
			"\t\tif ack == group.Durable {\n\t\t\tcopied := *req\n" +
				"\t\t\tgo func() { _, _, _ = r.send(context.WithoutCancel(ctx), gid, &copied, ack, term) }()\n" +
				"\t\t\treturn group.Answer{}, nil\n\t\t}\n\t\ta, sure, err := r.send(ctx, gid, req, ack, term)\n",
			"TestEventualWrites_SurviveFollowerFailures", "3", lost, nil, "",
		},
		"replicas that do not all do the same": {
			"raftfsm/snapshot/fsm.go", "entries[i].Data = l.Data", "if start.Nanosecond()%37 != 0 {\n" +
				"\t\t\t\tentries[i].Data = l.Data\n\t\t\t}",
			"TestClients_RetriesHideNodeFailures/all_restarted", "1", "not in time: n.*here and.*there|are lost",
			nil, "",
		},
		"a snapshot that is taken for installed and is not": {
			"raftfsm/snapshot/store.go", "err := k.install()", "var err error",
			"TestCluster_InstallsSnapshotsUnderLoad", "2", "does not serve|are lost", nil, "",
		},
		"locks that end by the wall clock of the leader": {
			"raftfsm/locks/keeper.go", "time.AfterFunc(l.Expiry, func() { k.expire(name, h) })",
			"time.AfterFunc(time.Until(time.Now().Truncate(l.Expiry).Add(l.Expiry)), func() { k.expire(name, h) })",
			"TestCampaign_ProcessesAndNetwork", "3", "locks: the history of .* is not linearizable", nil, "",
		},
		"tokens that repeat": {
			"raftfsm/locks/store.go", "Token: res.Revisions[0], Expiry", "Token: res.Revisions[0] &^ 1023, Expiry",
			"TestCampaign_ProcessesAndNetwork", "1", "locks: the history of .* is not linearizable", nil, "",
		},
		"a watch that forgets a batch": {
			"component/state/feed/topic.go", "if len(page.Changes) == 0 || t.end != nil {",
			"if len(page.Changes) == 0 || t.end != nil || page.Seen%50 == 0 {",
			"TestCampaign_ProcessesAndNetwork", "1", "and the last one was|were acknowledged", nil, "",
		},
		"due work whose index is changed by another entry": {
			"raftfsm/due/handout.go", "&command.Request{Kind: command.KindWrite, Ops: ops})\n\t\tcancel()",
			"&command.Request{Kind: command.KindWrite, Ops: ops[:1]})\n\t\tif err == nil && " +
				"res.Outcome == kv.Applied {\n\t\t\t_, err = k.group.Commit(ctx, &command.Request{Kind: " +
				"command.KindWrite, Ops: ops[1:]})\n\t\t}\n\t\tcancel()",
			"TestModel_KeepsInvariants", "30", "an index record without state", nil, "raftfsm/due",
		},
		"due work that a new leader forgets": {
			"raftfsm/due/keeper.go", "k.queueOf(h).more = true", "k.queueOf(h).more = true\n\t\t\t" +
				"k.queueOf(h).upto = h.indexKey(k.group.Now(), \"\")",
			"TestModel_KeepsInvariants", "30", "nothing delivers what is left", nil, "raftfsm/due",
		},
		"due work that is early": {
			"raftfsm/due/handout.go", "if at := q.buf[0].at; at > now {", "if at := q.buf[0].at; at > now+50 {",
			"TestModel_KeepsInvariants", "30", "is delivered .* ms early", nil, "raftfsm/due",
		},
		"due work that a deposed leader delivers": {
			"raftfsm/due/handout.go", "if !k.confirm() {", "if false {",
			"TestModel_KeepsInvariants", "30", "after its removal was acknowledged", nil, "raftfsm/due",
		},
		"messages that a deposed leader delivers": {
			"raftfsm/topics/session.go",
			"err = g.Confirm(ctx)\n\tk.mu.Lock()\n\tif err == nil && (k.sessions[s.id] != s || g.Term() != term) {",
			"_, _ = g, term\n\tk.mu.Lock()\n\tif k.sessions[s.id] != s {",
			"TestModel_KeepsInvariants", "60", "after it was settled|ms early", nil, "raftfsm/topics",
		},
		"a cursor that passes open messages": {
			"raftfsm/topics/flush.go", "next.open = append(next.open, offset)", "_ = offset",
			"TestModel_KeepsInvariants", "30", "no node has acknowledged it", nil, "raftfsm/topics",
		},
		"retention that ignores a group": {
			"raftfsm/topics/retain.go", "case keep:", "case keep && false:",
			"TestModel_KeepsInvariants", "30", "has not settled it", nil, "raftfsm/topics",
		},
		"attempts that are not in the log": {
			"raftfsm/topics/consumer.go", "parked: parked{attempts: i.attempts, at: at",
			"parked: parked{attempts: 0, at: at",
			"TestModel_KeepsInvariants", "30", "is parked in group", nil, "raftfsm/topics",
		},
		"keys that are ignored": {
			"raftfsm/topics/consumer.go", "case i.key != \"\":", "case i.key == \"z\":",
			"TestModel_KeepsInvariants", "30", "before message .* is acknowledged", nil, "raftfsm/topics",
		},
		"messages that overtake those behind a failing one": {
			"raftfsm/topics/tail.go", "len(tail) > 0 && tail[0] < offset", "len(tail) > 0 && tail[0] < offset && false",
			"TestModel_KeepsInvariants", "30", "before message .* is acknowledged", nil, "raftfsm/topics",
		},
		"outcomes that are answered before they are in the log": {
			"raftfsm/topics/session.go", "\tselect {\n\tcase <-w.done:",
			"\tselect {\n\tdefault:\n\t\treturn leases, nil\n\tcase <-w.done:",
			"TestModel_KeepsInvariants", "100", "what is left is not settled", nil, "raftfsm/topics",
		},
		"keys that are ignored, in the simulation": {
			"raftfsm/topics/consumer.go",
			"case i.key != \"\":",
			"case i.key == \"z\":",
			topicSimulation, "30", "is delivered before", nil, "raftfsm/group",
		},
		"groups of concurrency 1 without an order, in the simulation": {
			"raftfsm/topics/consumer.go",
			"case c.concurrency == 1:",
			"case c.concurrency == 0:",
			topicSimulation, "30", "is delivered before", nil, "raftfsm/group",
		},
		"a cursor that passes open messages, in the simulation": {
			"raftfsm/topics/flush.go",
			"next.open = append(next.open, offset)",
			"_ = offset",
			topicSimulation, "30", "messages are not delivered", nil, "raftfsm/group",
		},
		"dead letters that are settled and not appended, in the simulation": {
			"raftfsm/topics/flush.go",
			"if v.Found && len(v.Value) >= 8 {",
			"if v.Found && len(v.Value) >= 8 && s.offset%2 == 0 {",
			topicSimulation, "30", "messages are not delivered", nil, "raftfsm/group",
		},
		"dead letters that a transaction has acknowledged, in the simulation": {
			"raftfsm/topics/flush.go",
			"if s.kind == settleDead {\n\t\t\top = i.unlessSettled(op)",
			"if s.kind == 0 {\n\t\t\top = i.unlessSettled(op)",
			topicSimulation, "60", "is acknowledged by a transaction, and is a dead letter", nil, "raftfsm/group",
		},
		"events that are published apart from their transaction, in the simulation": {
			"raftfsm/topics/effect.go",
			"return e.b.publishOps(e.part(gid), e.messages, 0), nil",
			"_, err := e.b.access.Write(context.Background(), gid, &command.Request{Kind: " +
				"command.KindWrite,\n\t\tOps: e.b.publishOps(e.part(gid), e.messages, 0)})\n\treturn nil, err",
			topicSimulation, "30", "of a publish that was refused|was not published there", nil, "raftfsm/group",
		},
		"messages that are published as often as they are sent, in the simulation": {
			"raftfsm/topics/broker.go",
			"ops = append(ops, command.Op{Kind: command.OpSet, Cond: command.CondAbsent, Store: kv.TopicStore,\n" +
				"\t\t\t\tKey: t.key(tableID",
			"ops = append(ops, command.Op{Kind: command.OpSet, Store: kv.TopicStore,\n\t\t\t\tKey: t.key(tableID",
			topicSimulation, "30", "has message .* twice", nil, "raftfsm/group",
		},
		"bulks in another order, in the simulation": {
			"raftfsm/topics/broker.go", "ops = append(ops, AppendOp(t, &messages[i]))",
			"ops = append(ops, AppendOp(t, &messages[len(messages)-1-i]))",
			topicSimulation, "30", "of the same publish", nil, "raftfsm/group",
		},
		"outcomes that a deposed leader takes for settled": {
			"raftfsm/topics/session.go", "if !logged {", "if !logged && ctx.Err() != nil {",
			"TestModel_KeepsInvariants", "400", "what is left is not settled", nil, "raftfsm/topics",
		},
		"entries of a workflow without a condition": {
			"raftfsm/workflows/change.go", "op := i.asKnown(command.OpSet)",
			"op := i.asKnown(command.OpSet)\n\top.Cond = command.CondNone",
			"TestModel_KeepsInvariants", "30", broken, nil, "raftfsm/workflows",
		},
		"activities that a new leader hands out at once": {
			"raftfsm/workflows/keeper.go", "if len(k.absent) > 0 {\n\t\tk.endGrace",
			"if len(k.absent) > maxSessions {\n\t\tk.endGrace",
			"TestModel_KeepsInvariants", "30", broken, nil, "raftfsm/workflows",
		},
		"messages of workflows that a new leader forgets": {
			"raftfsm/workflows/keeper.go",
			"if err := k.outbox.load(k, p); err != nil {\n\t\t\treturn err\n\t\t}\n", "",
			"TestModel_KeepsInvariants", "30", "does not complete", nil, "raftfsm/workflows",
		},
		"timers that a new leader forgets": {
			"raftfsm/workflows/keeper.go",
			"if err := k.timers.load(k, p); err != nil {\n\t\t\treturn err\n\t\t}\n", "",
			"TestModel_KeepsInvariants", "30", "does not complete", nil, "raftfsm/workflows",
		},
		"events of a workflow that are stored as often as they come": {
			"raftfsm/workflows/change.go", "if slices.Contains(c.head.recent, a.key) && !c.wiped {", "if false {",
			"TestModel_KeepsInvariants", "200", "has two results", nil, "raftfsm/workflows",
		},
		"scheduled starts whose first event is only in memory": {
			"raftfsm/workflows/change.go", "(c.created || c.head.startAt != i.head.startAt)", "c.created",
			"TestModel_LeaderChangesBetweenEntries", "1", "later-0 does not complete", nil, "raftfsm/workflows",
		},
		"entries of a workflow without a condition, in the simulation": {
			"raftfsm/workflows/change.go", "op := i.asKnown(command.OpSet)",
			"op := i.asKnown(command.OpSet)\n\top.Cond = command.CondNone",
			flowSimulation, "30", "two results|have not completed|has changed", nil, "raftfsm/group",
		},
		"activities that a new leader hands out at once, in the simulation": {
			"raftfsm/workflows/keeper.go", "if len(k.absent) > 0 {\n\t\tk.endGrace",
			"if len(k.absent) > maxSessions {\n\t\tk.endGrace",
			flowSimulation, "30", "is handed to node .* while a stream of node .* has it", nil, "raftfsm/group",
		},
		"activities that nodes report and a new leader ignores, in the simulation": {
			"raftfsm/workflows/session.go",
			"t.lease, t.attempt = st, max(t.attempt, h.Attempt)\n\tst.activities++\n\treturn nil\n}", "return nil\n}",
			flowSimulation, "30", "is handed to node .* while a stream of node .* has it|have not completed", nil,
			"raftfsm/group",
		},
		"activities of a stream that ends, which are lost, in the simulation": {
			"raftfsm/workflows/session.go", "if t.lease = nil; !t.done {\n\t\t\tk.queueTask(t)\n\t\t}", "t.lease = nil",
			flowSimulation, "30", "have not completed|records are left", nil, "raftfsm/group",
		},
		"messages of workflows that a new leader forgets, in the simulation": {
			"raftfsm/workflows/keeper.go",
			"if err := k.outbox.load(k, p); err != nil {\n\t\t\treturn err\n\t\t}\n", "",
			flowSimulation, "30", "have not completed|is ORCHESTRATION_STATUS|records are left", nil, "raftfsm/group",
		},
		"timers that a new leader forgets, in the simulation": {
			"raftfsm/workflows/keeper.go",
			"if err := k.timers.load(k, p); err != nil {\n\t\t\treturn err\n\t\t}\n", "",
			flowSimulation, "30", "have not completed|records are left", nil, "raftfsm/group",
		},
		"timers of workflows that are early, in the simulation": {
			"raftfsm/workflows/timers.go", "case at > now:", "case at > now+200:",
			flowSimulation, "30", "of workflow .* fires .* early", nil, "raftfsm/group",
		},
		"events of a workflow that are stored as often as they come, in the simulation": {
			"raftfsm/workflows/change.go", "if slices.Contains(c.head.recent, a.key) && !c.wiped {", "if false {",
			flowSimulation, "200", "has event .* twice", nil, "raftfsm/group",
		},
		"events that a continue-as-new forgets, in the simulation": {
			"component/workflow/turn/apply.go", "a.carry(a.next.GetCarryoverEvents())", "",
			flowSimulation, "30", "have not completed|records are left", nil, "raftfsm/group",
		},
		"starts of unknown outcome that are reported as refused, in the simulation": {
			"raftfsm/workflows/broker.go", "repeated && c.changes() && notDone(err)",
			"repeated && c.changes() && notDone(err) && ctx.Err() == context.Canceled",
			flowSimulation, "100", "was not started, and has executed|is ORCHESTRATION_STATUS", nil, "raftfsm/group",
		},
		"registrations of actor hosts that are applied late and not read": {
			"raftfsm/actors/keeper.go", "\t\tk.running.Go(k.decide)", "\t\tk.deciding = false",
			"TestModel_KeepsInvariants", "400", "the directory has", nil, "raftfsm/actors",
		},
		"hosts of actors that take another session for theirs": {
			"raftfsm/actors/keeper.go", "if h.Revision != 0 && (s == nil", "if false && (s == nil",
			"TestModel_KeepsInvariants", "400", "both serve actor", nil, "raftfsm/actors",
		},
		"workflows that are stored without their first event": {
			"raftfsm/workflows/change.go", "if c.needed && (c.created || ", "if c.needed && (",
			"TestDoubt_CreationHasItsFirstEvent", "1", "does not complete", nil, "raftfsm/workflows",
		},
		"timers that are removed because their instance is not known": {
			"raftfsm/workflows/change.go", "entry := append(ops(i.asKnown(command.OpCheck)), list...)", "entry := list",
			"TestDoubt_TimerOfAnUnknownInstanceStays", "1", "does not complete", nil, "raftfsm/workflows",
		},
		"writes of actors without their epoch": {
			"raftfsm/actors/record.go",
			"{Kind: command.OpCheck, Cond: command.CondRevision, Revision: epoch, Store: kv.LockStore, " +
				"Key: a.Key()},\n", "",
			"TestModel_KeepsInvariants", "30", "is written with epoch", nil, "raftfsm/actors",
		},
		"sessions of hosts that end by the wall clock of the leader": {
			"raftfsm/actors/keeper.go",
			"s.until, s.actors = time.Now().Add(k.patience), actors\n\t\t\ts.timer.Reset(k.patience)",
			"s.until, s.actors = time.Now().Truncate(k.patience).Add(k.patience), actors\n\t\t\t" +
				"s.timer.Reset(time.Until(s.until))",
			"TestModel_KeepsInvariants", "30", "ends the session of .* after it has received a renewal", nil,
			"raftfsm/actors",
		},
		"renewals that a deposed leader answers": {
			"raftfsm/actors/keeper.go", "if _, unsure := group.Confirm(ctx); unsure != nil {",
			"if _, unsure := group.Confirm(ctx); unsure != nil && ctx.Err() != nil {",
			"TestModel_KeepsInvariants", "400", "while its lease is valid|has a valid lease", nil, "raftfsm/actors",
		},
		"sessions that are renewed while their end is under way": {
			"raftfsm/actors/keeper.go", "ending: k.ends[h.ID]}", "ending: k.ends[h.ID] && k.closed}",
			"TestModel_KeepsInvariants", "200", "while its lease is valid|has a valid lease", nil, "raftfsm/actors",
		},
		"locks that end by the wall clock of the leader, in the model": {
			"raftfsm/locks/keeper.go", "time.AfterFunc(l.Expiry, func() { k.expire(name, h) })",
			"time.AfterFunc(time.Until(time.Now().Truncate(l.Expiry).Add(l.Expiry)), func() { k.expire(name, h) })",
			"TestModel_KeepsInvariants", "30", "before its expiry of", nil, "raftfsm/locks",
		},
		"locks that end although they were renewed": {
			"raftfsm/locks/keeper.go", "k.end(k.closing, name, h.Token, h.Renewals)",
			"k.end(k.closing, name, h.Token, 0)",
			"TestModel_KeepsInvariants", "30", "before its expiry of", nil, "raftfsm/locks",
		},
		"tokens that repeat, in the model": {
			"raftfsm/locks/queue.go", "token := res.Revisions[0]", "token := res.Revisions[0] &^ 15",
			"TestModel_KeepsInvariants", "30", "has got token .* has acquired", nil, "raftfsm/locks",
		},
		"a watch that forgets a batch, in the model": {
			"component/state/feed/topic.go", "if len(page.Changes) == 0 || t.end != nil {",
			"if len(page.Changes) == 0 || t.end != nil || page.Seen%50 == 0 {",
			"TestModel_WatchesGetEveryChangeOnce", "40", "and the next one is|was not delivered", nil,
			"component/state/feed",
		},
		"a watch that is not notified, in the model": {
			"component/state/feed/topic.go", "t.wake = make(chan struct{})\n\tt.notify()",
			"t.wake = make(chan struct{})",
			"TestModel_WatchesGetEveryChangeOnce", "40", "was not notified of change", nil, "component/state/feed",
		},
		"locks that end by the wall clock of the leader, in the simulation": {
			"raftfsm/locks/keeper.go", "time.AfterFunc(l.Expiry, func() { k.expire(name, h) })",
			"time.AfterFunc(time.Until(time.Now().Truncate(l.Expiry).Add(l.Expiry)), func() { k.expire(name, h) })",
			"TestSimulation_LocksAndWatchesSurviveCuts", "3", "was granted with token .* is valid until", nil,
			"raftfsm",
		},
		"tokens that repeat, in the simulation": {
			"raftfsm/locks/store.go", "Token: res.Revisions[0], Expiry", "Token: res.Revisions[0] &^ 1023, Expiry",
			"TestSimulation_LocksAndWatchesSurviveCuts", "3", "was granted twice", nil, "raftfsm",
		},
		"a watch that forgets a batch, in the simulation": {
			"component/state/feed/topic.go", "if len(page.Changes) == 0 || t.end != nil {",
			"if len(page.Changes) == 0 || t.end != nil || page.Seen%50 == 0 {",
			"TestSimulation_LocksAndWatchesSurviveCuts", "3", "the watch at server", nil, "raftfsm",
		},
		"writes of actors without fencing": {
			"raftfsm/store.go", "if len(w.locks) > 0 || w.actor != nil {", "if len(w.locks) > 0 {",
			"TestActors_PausedOwnerDoesNotWrite", "6", "two epochs write|an acknowledged increment is lost", nil, "",
		},
		"writes of actors without fencing, in the simulation": {
			"raftfsm/store.go", "if len(w.locks) > 0 || w.actor != nil {", "if len(w.locks) > 0 {",
			"TestSimulation_ActorsHaveOneOwner", "10", "is applied, although a turn with epoch", nil, "raftfsm",
		},
		"actors that read what a replica has that is behind": {
			"api/actor.go", "active.token != \"\" && item.Level == state.Stale {",
			"active.token == \"\" && item.Level == state.Stale {",
			"TestActorGet_IsNeverStale", "1", "an active actor reads", nil, "api",
		},
		"hosts that look at their lease by the wall clock": {
			"api/actors/host.go", "until := sentAt.Add(leaseTime); session",
			"until := sentAt.Truncate(leaseTime).Add(2 * leaseTime); session",
			"TestLease_WithoutItNoTurnAndNoAnswer", "1", "without a lease", nil, "api/actors",
		},
		"hosts that stop without waiting for their turns": {
			"api/actors/drain.go", "if !h.awaitTurns(ctx, some) {", "if false {",
			"TestClose_AfterTheRunningTurn", "1", "while the turn runs", nil, "api/actors",
		},
		"hosts that hand actors over without waiting for their turns": {
			"api/actors/spread.go", "busy = append(busy, a)\n\t\tdefault:", "idle = append(idle, a)\n\t\tdefault:",
			"TestHandOver_AfterTheRunningTurn", "1", "given away while a turn ran", nil, "api/actors",
		},
		"log entries without a checksum": {
			"raftfsm/raftlog/checksum.go", "if binary.BigEndian.Uint32(e[2:]) != sealSum(l, e[sealSize:]) {",
			"if false {",
			"TestDamage_LoneServerServesNoWrongValue/boltdb", "40", "log.db, bit .* is \"", nil, "raftfsm",
		},
		"a process that hangs where it should end": {
			"cmd/lab/internal/tuned/tuned.go", "\"error\", err)\n\t\t\tos.Exit(1)", "\"error\", err)\n\t\t\tselect {}",
			"TestNode_EndsWhenItsDiskFails", "1", "goes on without a disk", nil, "",
		},
	}
}

// A mutant that does not match the source shows nothing.
func TestMutants_ApplyToTheSource(t *testing.T) {
	root, err := filepath.Abs("../../../..")
	must(t, err)
	for name, m := range mutants() {
		for _, e := range m.edits() {
			text, err := os.ReadFile(filepath.Join(root, e.file))
			must(t, err)
			if n := strings.Count(string(text), e.old); n != 1 {
				t.Errorf("%s: %q occurs %d times in %s: adapt the mutant", name, e.old, n, e.file)
			}
		}
	}
}

// Each mutant of the product must be found by its test. This takes minutes, so it runs only if
// QUORATE_FAULT_MUTANTS is set.
func TestMutants_AreFound(t *testing.T) {
	only := os.Getenv("QUORATE_FAULT_MUTANTS")
	if only == "" {
		t.Skip("QUORATE_FAULT_MUTANTS is not set: set it to all, or to a part of a name")
	}
	root, err := filepath.Abs("../../../..")
	must(t, err)
	self, err := os.Executable()
	must(t, err)
	for name, m := range mutants() {
		t.Run(name, func(t *testing.T) {
			if only != "all" && !strings.Contains(name, only) {
				t.Skip("not selected")
			}
			cmd := exec.Command(self, "-test.run", m.pattern(), "-test.v", "-test.timeout",
				"8m") //nolint:gosec,noctx // these tests
			cmd.Env = append(os.Environ(), "QUORATE_FAULT_ROUNDS="+m.rounds, "QUORATE_FAULT_BINARY=",
				"QUORATE_FAULT_MUTANTS=", "QUORATE_FAULT_REPLAY=30s")
			if m.in == "" {
				cmd.Env = append(cmd.Env, labtest.Env+"="+m.build(t, root))
			} else {
				args := []string{"test", "-trimpath", "-overlay", m.overlay(t, root), "-run", m.pattern(), "-v",
					"-count=1", "-timeout", "8m", "./" + m.in}
				cmd.Path, cmd.Args, cmd.Dir = goProgram(t), append([]string{"go"}, args...), root
				cmd.Env = append(cmd.Env, "QUORATE_FLIPS="+m.rounds, "QUORATE_SIM_SEEDS="+m.rounds)
			}
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("%s did not find it:\n%s", m.test, out)
			}
			found := regexp.MustCompile(".*(" + m.says + ").*").Find(out)
			if found == nil {
				t.Fatalf("%s failed, but not with %q:\n%s", m.test, m.says, out)
			}
			t.Logf("%s: %s", m.test, found)
		})
	}
}

// pattern picks the test, and where there is one the subtest.
func (m mutant) pattern() string {
	name, sub, _ := strings.Cut(m.test, "/")
	if sub == "" {
		return "^" + name + "$"
	}
	return "^" + name + "$/^" + sub
}

func goProgram(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("go")
	must(t, err)
	return path
}

// build compiles the program lab with the mutant in place of the files.
func (m mutant) build(t *testing.T, root string) string {
	t.Helper()
	return labtest.BuildChanged(t, "cmd/lab", m.overlay(t, root))
}

// overlay writes the changed files and a list of them for the compiler.
func (m mutant) overlay(t *testing.T, root string) string {
	t.Helper()
	dir := t.TempDir()
	list := filepath.Join(dir, "overlay.json")
	replace := map[string]string{}
	for i, e := range m.edits() {
		original, changed := filepath.Join(root, e.file), filepath.Join(dir, fmt.Sprintf("changed%d.go", i))
		text, err := os.ReadFile(original)
		must(t, err)
		if n := strings.Count(string(text), e.old); n != 1 {
			t.Fatalf("%q stands %d times in %s: adapt the mutant", e.old, n, e.file)
		}
		must(t, os.WriteFile(changed, []byte(strings.Replace(string(text), e.old, e.broken, 1)), 0o600))
		replace[original] = changed
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, err)
	must(t, os.WriteFile(list, overlay, 0o600))
	return list
}
