package group

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/history"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
	"github.com/quorate/quorate/raftfsm/workflows"
)

const (
	flowApp     = "app"
	flowNodes   = 3 // number of nodes with workers
	flowClients = 2
)

// flowLoad has clients that start workflows, raise their events, and suspend and resume some of them. Nodes have
// workers that execute turns and activities. Brokers, keepers, groups, logs and snapshots are those of the product.
//
// history.Workflows.Check describes what is checked of instances. flowSeen also checks every turn and every activity.
// A client does not repeat an acknowledged raise of an event. So if such an event is lost, its workflow does not
// complete.
type flowLoad struct {
	s    *sim
	h    *history.Workflows
	seen *flowSeen
	calm atomic.Bool // workers are fast and reliable

	nodes incarnations[*flowNode]

	mu     sync.Mutex // guards the fields below
	starts []*flowStart
	raises int
}

// flowStart is an instance that a client starts.
type flowStart struct {
	*history.Instance
	open []string // events that no acknowledged call has raised
}

func newFlowLoad(s *sim) *flowLoad {
	l := &flowLoad{s: s, h: history.NewWorkflows(), seen: newFlowSeen(s)}
	l.nodes.s, l.nodes.open = s, l.open
	s.kill = l.nodes.kill
	s.service = &simService{stores: workflows.Stores, open: func(o *Options, a *simAccess) simKeeper {
		k := workflows.NewKeeper(workflows.Options{Logger: o.Logger, Sender: simSender{a}})
		o.Workflows = k
		return k
	}}
	return l
}

// simSender sends half of the messages as if their targets were in another group.
type simSender struct{ a *simAccess }

// Locate implements workflows.Sender.
func (f simSender) Locate(_ context.Context, r workflows.Ref) (uint32, error) {
	return uint32(len(r.Prefix())+int(r.Prefix()[len(r.Prefix())-1])) % 2, nil //nolint:gosec // small
}

// Ask implements workflows.Sender. The caller repeats a call that has failed.
func (f simSender) Ask(ctx context.Context, _ uint32, _ string, body []byte) ([]byte, bool, error) {
	out, err := simTry(ctx, f.a, simAskTimeout, f.a.serve(body))
	return out, false, err
}

// adapt replaces some blows by kills of nodes, full disks and read-only groups. It also makes the pauses between blows
// longer, so that workflows proceed between them.
func (l *flowLoad) adapt(blows []blow) {
	rnd := rand.New(rand.NewPCG(l.s.seed, 7))
	for i := range blows {
		blows[i].wait *= 3
		if l.s.broke.slow { // the leader is cut off for longer than sessions of nodes live
			blows[i].wait *= time.Duration(1 + i%2)
			continue
		}
		switch rnd.IntN(5) {
		case 0, 1:
			blows[i].kind = blowKill
		case 2:
			blows[i].kind = blowFull + rnd.IntN(2)
		}
	}
}

func (l *flowLoad) start(stop <-chan struct{}, work *sync.WaitGroup) {
	l.nodes.startAll(flowNodes)
	pause := 500 // milliseconds between two starts, at most
	if l.s.broke.slow {
		pause *= 4 // schedules are long
	}
	for id := range flowClients {
		c := &flowClient{l: l, id: id, b: l.s.newAccess(id).newFlows(),
			rnd: rand.New(rand.NewPCG(l.s.seed, uint64(id+20)))}
		work.Go(func() {
			defer func() { _ = c.b.Close() }()
			for n := range 40 {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(c.rnd.IntN(pause)) * time.Millisecond):
					c.begin(n)
				}
			}
		})
	}
}

// newFlows returns a broker of a node.
func (a *simAccess) newFlows() *workflows.Broker {
	return workflows.NewBroker(a, workflows.BrokerOptions{Logger: a.s.logger})
}

// flowClient starts one workflow after another.
type flowClient struct {
	l   *flowLoad
	id  int
	b   *workflows.Broker
	rnd *rand.Rand
}

// begin starts a workflow and raises its events. It repeats a start of unknown outcome.
func (c *flowClient) begin(n int) {
	l, id := c.l, fmt.Sprintf("w%d-%02d", c.id, n)
	p := randomPlan(c.rnd, id)
	made := &flowStart{Instance: &history.Instance{ID: id, Kind: planName, Steps: p.recorded(), Begin: l.h.Now(),
		Result: history.Unknown, Ends: c.rnd.IntN(8) == 0}, open: p.events()}
	var at *timestamppb.Timestamp
	if c.rnd.IntN(8) == 0 {
		at = timestamppb.New(time.Now().Add(time.Duration(c.rnd.IntN(3000)) * time.Millisecond))
	}
	for try := 0; try < 3 && made.Result == history.Unknown; try++ {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := c.b.Start(ctx, flowApp, &protos.CreateInstanceRequest{InstanceId: id, Name: planName,
			Input: encodeText(p), EnforceUniqueInstanceId: true, ScheduledStartTimestamp: at})
		cancel()
		made.Result = l.started(made.ID, err, try > 0)
		if made.Result == history.Refused && !fault.Is(err, fault.ReadOnly) {
			l.s.note("the start of %s is refused: %v", id, err)
		}
	}
	made.End = l.h.Now()
	l.h.AddInstance(made.Instance)
	l.mu.Lock()
	l.starts = append(l.starts, made)
	l.mu.Unlock()
	if made.Result == history.Written {
		l.raise(c.b, made)
		switch n := c.rnd.IntN(6); {
		case n == 0:
			c.pause(id)
		case made.Ends:
			c.terminate(id)
		}
	}
}

// terminate terminates an instance with its children, after at most 400 ms.
func (c *flowClient) terminate(id string) {
	after(time.Duration(c.rnd.IntN(400)) * time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = c.b.Terminate(ctx, flowApp, &protos.TerminateRequest{InstanceId: id, Recursive: true})
}

// started returns what a client knows after a start. The parameter repeated reports whether the outcome of an earlier
// start with the same id is unknown.
func (l *flowLoad) started(id string, err error, repeated bool) history.Result {
	switch fault.CodeOf(err) {
	case "":
		if err == nil {
			return history.Written
		}
	case fault.Conflict:
		if !repeated {
			l.s.fail("the start of %s is refused, although nothing else has its id: %v", id, err)
		}
		return history.Written
	case fault.ReadOnly, fault.Unavailable, fault.Timeout, fault.NotLeader, fault.Overloaded:
		if !repeated {
			return history.Refused // with these errors, workflow.Engine reports that the start was not done
		}
	}
	return history.Unknown
}

// raise raises the events of an instance that no acknowledged call has raised.
func (l *flowLoad) raise(b *workflows.Broker, i *flowStart) {
	l.mu.Lock()
	names := i.open
	i.open = nil
	l.mu.Unlock()
	for _, name := range names {
		l.mu.Lock()
		l.raises++
		input := fmt.Sprint("raise ", l.raises)
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := b.Raise(ctx, flowApp, &protos.RaiseEventRequest{InstanceId: i.ID, Name: name,
			Input: encodeRaw(input)})
		cancel()
		if err != nil {
			l.mu.Lock()
			i.open = append(i.open, name)
			l.mu.Unlock()
		}
	}
}

// pause suspends an instance, and mostly resumes it. The method read of flowLoad resumes the others at the end.
func (c *flowClient) pause(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = c.b.Suspend(ctx, flowApp, &protos.SuspendRequest{InstanceId: id})
	if c.rnd.IntN(3) > 0 {
		_ = c.b.Resume(ctx, flowApp, &protos.ResumeRequest{InstanceId: id})
	}
}

// open starts a node.
func (l *flowLoad) open(id int) *flowNode {
	n := &flowNode{l: l, id: id, a: l.s.newAccess(id), over: make(chan struct{})}
	n.b = n.a.newFlows()
	l.nodes.tasks.Go(n.live)
	return n
}

// audit waits until all workflows have completed, and compares the servers.
func (l *flowLoad) audit() {
	l.calm.Store(true)
	a := l.s.newAccess(0)
	b := a.newFlows()
	defer func() { _ = b.Close() }()
	after(2 * simAskTimeout) // calls that are late have ended afterwards
	if !l.s.within(simBound, "after healing, all workflows complete", func() error {
		after(200 * time.Millisecond)
		if err := l.read(b); err != nil {
			return err
		}
		if ids := l.h.Open(); len(ids) > 0 {
			return fmt.Errorf("%d workflows have not completed, such as %v: %s", len(ids), ids[:min(10, len(ids))],
				l.describe(b, ids[0]))
		}
		return nil
	}) {
		return
	}
	for _, step := range []struct {
		what  string
		check func() error
	}{
		{"histories can be read", func() error { return l.readHistories(b) }},
		{"all children end", func() error { return l.allEnded(b) }},
		{"nothing waits", func() error { return l.left(a, "diot") }},
		{"workflows are purged", func() error { return l.purge(b) }},
		{"nothing of purged workflows is left", func() error { return l.left(a, "cdhilot") }},
		{"equal states", l.s.equal},
	} {
		if !l.s.within(simBound, "after healing, "+step.what, step.check) {
			return
		}
	}
}

// allEnded returns an error while an instance, or a child of an instance, runs.
func (l *flowLoad) allEnded(b *workflows.Broker) error {
	after(200 * time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for token, more := "", true; more; more = token != "" {
		page, next, err := b.List(ctx, flowApp, workflow.Filter{}, token, 1000)
		if err != nil {
			return err
		}
		for _, i := range page {
			if !workflow.Terminal(i.Status) {
				return fmt.Errorf("workflow %s is %s", i.ID, i.Status)
			}
		}
		token = next
	}
	return nil
}

// purge removes all instances, including children. It does not remove children through their parents, because a
// workflow that has continued as new does not know its earlier children.
func (l *flowLoad) purge(b *workflows.Broker) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, complete, err := b.PurgeMatching(ctx, flowApp, workflow.Filter{}, false)
	if err == nil && !complete {
		err = errors.New("there are more")
	}
	return err
}

// left returns an error while the store has records in one of the given tables of package workflows. Each byte of
// tables names a table.
func (l *flowLoad) left(a *simAccess, tables string) error {
	after(200 * time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var left []string
	for last, more := "", true; more; {
		var keys []string
		var err error
		keys, more, err = a.List(ctx, 0, kv.WorkflowStore, records.Page{Prefix: flowApp, After: last,
			Limit: records.MaxPage})
		if err != nil {
			return err
		}
		for _, key := range keys {
			if last = key; strings.IndexByte(tables, key[len(flowApp)+3]) >= 0 { // after NUL and the bucket
				left = append(left, key)
			}
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("%d records are left, such as %q", len(left), left[:min(len(left), 10)])
	}
	return nil
}

// read records the states of the instances that are not known to have completed, and gives them what they wait for.
func (l *flowLoad) read(b *workflows.Broker) error {
	open := map[string]bool{}
	for _, id := range l.h.Open() {
		open[id] = true
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, i := range l.starts { // the clients have ended
		if !open[i.ID] {
			continue
		}
		s, err := b.State(ctx, flowApp, i.ID, true)
		if fault.Is(err, fault.NotFound) {
			l.h.Ended(i.ID, history.Outcome{})
			continue
		}
		if err != nil {
			return err
		}
		status := s.GetWorkflowStatus()
		o := history.Outcome{Status: strings.TrimPrefix(status.String(), "ORCHESTRATION_STATUS_"),
			Completed:  status == protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED,
			Terminated: status == protos.OrchestrationStatus_ORCHESTRATION_STATUS_TERMINATED}
		if o.Completed {
			if err := json.Unmarshal([]byte(s.GetOutput().GetValue()), &o.Output); err != nil {
				l.s.fail("the output of workflow %s is %q: %w", i.ID, s.GetOutput().GetValue(), err)
			}
		}
		l.h.Ended(i.ID, o)
		if status == protos.OrchestrationStatus_ORCHESTRATION_STATUS_SUSPENDED {
			_ = b.Resume(ctx, flowApp, &protos.ResumeRequest{InstanceId: i.ID})
		}
		l.raise(b, i)
	}
	return nil
}

// describe returns the state of an instance and its history, to explain why it does not go on.
func (l *flowLoad) describe(b *workflows.Broker, id string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := b.State(ctx, flowApp, id, true)
	if err != nil {
		return err.Error()
	}
	events, _, err := b.History(ctx, flowApp, id, 0, 10_000)
	lines := []string{fmt.Sprint(s, " ", err)}
	for _, e := range events {
		lines = append(lines, e.String())
	}
	return strings.Join(lines, "\n")
}

// readHistories checks the histories of all instances.
func (l *flowLoad) readHistories(b *workflows.Broker) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, i := range l.starts {
		events, _, err := b.History(ctx, flowApp, i.ID, 0, 10_000)
		if fault.Is(err, fault.NotFound) && i.Result != history.Written {
			continue
		}
		if err != nil {
			return err
		}
		l.seen.checkEvents(i.ID, events)
	}
	return nil
}

// end ends the nodes.
func (l *flowLoad) end() { l.nodes.end() }

// simulateWorkflows runs the schedule of a seed with workflows. It returns the first broken guarantee, if any.
func simulateWorkflows(t *testing.T, seed uint64, b simBreak) (simTotals, error) {
	t.Helper()
	s := newSim(seed, b)
	s.logTo(t)
	var l *flowLoad
	synctest.Test(t, func(*testing.T) {
		l = newFlowLoad(s)
		s.play(l)
	})
	s.totals.Schedules, s.totals.Operations = 1, l.h.Size()
	for _, i := range l.starts {
		s.totals.Instances++
		if i.Result == history.Unknown {
			s.totals.Unknown++
		}
	}
	return s.totals, s.verdict(t, l.h)
}

// Short tests play three schedules.
func TestSimulation_WorkflowsKeepGuarantees(t *testing.T) {
	n := uint64(25)
	if testing.Short() {
		n = 3
	}
	playEverySeed(t, n, func(seed uint64) (simTotals, error) { return simulateWorkflows(t, seed, simBreak{}) })
}

// A leader that was deposed considers itself the leader for a long time, like a paused process. One node is cut off
// together with this leader.
func TestSimulation_WorkflowsOfSlowLeaderKeepGuarantees(t *testing.T) {
	playSeedsOf(t, 5, func(seed uint64) (simTotals, error) { return simulateWorkflows(t, seed, simBreak{slow: true}) })
}

func TestSimulation_WorkflowsFindLostLogEntries(t *testing.T) {
	findsFault(t, 50, func(seed uint64) (simTotals, error) { return simulateWorkflows(t, seed, simBreak{disk: "log"}) })
}
