package faulttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/internal/history"
)

// Pauses of clients and workers. workflowPace is how long a client waits after it has started a workflow, in addition
// to Options.Pace of the cluster. workerPause is how long a worker waits before it reconnects.
const (
	workflowPace = 250 * time.Millisecond
	workerPause  = 200 * time.Millisecond
)

// goEvent is the name of the event for which a step of kind viaEvent waits.
const goEvent = "go"

// WorkflowLoad has clients that start workflows through random nodes. A workflow runs its activities one after another
// or in parallel. It may also use a timer, an external event or a child workflow. Every node has a worker. See
// history.Workflows.Check for the checks.
type WorkflowLoad struct {
	History *history.Workflows

	seed    uint64
	cluster *Cluster
	life    context.Context // of the workers
	stop    context.CancelFunc
	workers sync.WaitGroup
	clients sync.WaitGroup
	end     context.CancelFunc // of the clients
}

// NewWorkflows returns a load without clients.
func NewWorkflows(seed uint64) *WorkflowLoad {
	l := &WorkflowLoad{seed: seed, History: history.NewWorkflows(), end: func() {}}
	l.life, l.stop = context.WithCancel(context.Background())
	return l
}

// Attend starts a worker for a node. The worker connects to the node again each time the connection ends, until Stop.
func (l *WorkflowLoad) Attend(n *Node) {
	w := &worker{load: l, node: n,
		rnd: rand.New(rand.NewPCG(l.seed, 9800+uint64(n.Addr.As4()[3])))} //nolint:gosec // chance, not a secret
	l.workers.Go(func() {
		for l.life.Err() == nil {
			w.work(l.life)
			pause(l.life, workerPause)
		}
	})
}

// Start starts the given number of clients. They run until Stop.
func (l *WorkflowLoad) Start(c *Cluster, clients int) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cluster, l.end = c, cancel
	for id := range clients {
		rnd := rand.New(rand.NewPCG(l.seed, uint64(id)+9700)) //nolint:gosec // chance, not a secret
		l.clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				c.pass(ctx, func() { l.start(ctx, rnd, fmt.Sprintf("w%d-%05d", id, n)) })
				pause(ctx, workflowPace)
			}
		})
	}
}

// start starts one workflow through a random node.
func (l *WorkflowLoad) start(ctx context.Context, rnd *rand.Rand, id string) {
	nodes := l.cluster.Running()
	if len(nodes) == 0 {
		return
	}
	n := nodes[rnd.IntN(len(nodes))]
	if !n.active() && rnd.IntN(8) > 0 { // a paused node answers no client
		return
	}
	kind, p := randomPlan(rnd, id)
	made := &history.Instance{ID: id, Kind: kind, Begin: l.History.Now()}
	for _, s := range p.Steps {
		made.Steps = append(made.Steps, history.Step{Name: s.Name, After: s.After})
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	reply, err := n.raw(limit, http.MethodPost, "/v1.0/workflows/dapr/plan/start?instanceID="+id, text(p))
	made.End, made.Result = l.History.Now(), history.Unknown
	switch {
	case err != nil:
		made.Result = written(lost(Request{}, err).Outcome)
	case reply.status == http.StatusAccepted:
		made.Result = history.Written
	case reply.status < http.StatusInternalServerError:
		made.Result = history.Refused
	}
	l.History.AddInstance(made)
	if kind == viaEvent {
		_ = n.raise(limit, id) // Stop raises it again
	}
}

// raise sends an instance the event for which it waits.
func (n *Node) raise(ctx context.Context, id string) error {
	reply, err := n.raw(ctx, http.MethodPost, "/v1.0/workflows/dapr/"+id+"/raiseEvent/"+goEvent, "")
	if err == nil && reply.status != http.StatusAccepted {
		err = fmt.Errorf("raising an event for %s: status %d: %s", id, reply.status, reply.body)
	}
	return err
}

// Stop stops the clients and returns the violations. If whole is true, it first waits until all workflow instances have
// completed. If the cluster does not serve requests, whole must be false; Stop then checks only what is already
// recorded.
func (l *WorkflowLoad) Stop(ctx context.Context, whole bool) (bad []string) {
	l.end()
	l.clients.Wait()
	if whole {
		l.expire(ctx)
		if err := Until(ctx, func() error { return l.settle(ctx) }); err != nil {
			bad = append(bad, "workflows: "+err.Error())
		}
		if l.History.Size() == 0 {
			bad = append(bad, "no workflow was started")
		}
	}
	l.stop()
	l.workers.Wait()
	return append(bad, l.History.Check()...)
}

// expire waits until no start of unknown outcome can still be in progress.
func (l *WorkflowLoad) expire(ctx context.Context) {
	pause(ctx, l.History.Newest()+2*answerTime-l.History.Now())
}

// settle records the current state of all workflow instances that are not known to have completed. It returns nil if
// all instances have completed.
func (l *WorkflowLoad) settle(ctx context.Context) error {
	nodes := l.cluster.Running()
	if len(nodes) == 0 {
		return errors.New("no node runs")
	}
	open := l.History.Open()
	for i, id := range open {
		if err := l.read(ctx, nodes[i%len(nodes)], id); err != nil {
			return err
		}
	}
	if open = l.History.Open(); len(open) > 0 {
		return fmt.Errorf("%d instances have not completed, such as %v", len(open), open[:min(10, len(open))])
	}
	return nil
}

// read records the state of an instance, and raises the event for which it may wait.
func (l *WorkflowLoad) read(ctx context.Context, n *Node, id string) error {
	reply, err := n.raw(ctx, http.MethodGet, "/v1.0/workflows/dapr/"+id, "")
	if err != nil {
		return err
	}
	if reply.status == http.StatusNotFound {
		l.History.Ended(id, history.Outcome{})
		return nil
	}
	var state struct {
		Status     string            `json:"runtimeStatus"`
		Properties map[string]string `json:"properties"`
	}
	if err := json.Unmarshal(reply.body, &state); err != nil || reply.status != http.StatusOK {
		return fmt.Errorf("reading %s: status %d: %s, %w", id, reply.status, reply.body, err)
	}
	o := history.Outcome{Completed: state.Status == "COMPLETED", Status: state.Status}
	if o.Completed {
		if err := json.Unmarshal([]byte(state.Properties["dapr.workflow.output"]), &o.Output); err != nil {
			return fmt.Errorf("the output of %s: %q: %w", id, state.Properties["dapr.workflow.output"], err)
		}
	}
	l.History.Ended(id, o)
	if l.History.KindOf(id) == viaEvent && state.Status == "RUNNING" {
		return n.raise(ctx, id)
	}
	return nil
}

// worker executes the workflows and activities that one node hands out.
type worker struct {
	load *WorkflowLoad
	node *Node

	mu  sync.Mutex
	rnd *rand.Rand // guarded by mu
}

// chance returns a random number below n.
func (w *worker) chance(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.IntN(n)
}

// work receives work items from the node and handles them until the connection ends. After a random time, work closes
// the connection itself, even if some items are still unfinished.
func (w *worker) work(ctx context.Context) {
	conn, err := w.node.grpc()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(2+w.chance(20))*time.Second)
	defer cancel()
	hub := protos.NewTaskHubSidecarServiceClient(conn)
	stream, err := hub.GetWorkItems(ctx, &protos.GetWorkItemsRequest{})
	if err != nil {
		return
	}
	var items sync.WaitGroup
	defer items.Wait()
	for {
		item, err := stream.Recv()
		if err != nil {
			return
		}
		items.Go(func() { w.handle(ctx, hub, item) })
	}
}

// handle executes one work item, and sends the result. A work item is an activity, or one turn of a workflow. handle
// does not repeat a failed send, because the node then sends the work item again.
func (w *worker) handle(ctx context.Context, hub protos.TaskHubSidecarServiceClient, item *protos.WorkItem) {
	limit, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if r := item.GetWorkflowRequest(); r != nil {
		actions := planTurn(append(r.GetPastEvents(), r.GetNewEvents()...))
		_, _ = hub.CompleteWorkflowTask(limit, &protos.WorkflowResponse{InstanceId: r.GetInstanceId(),
			Actions: actions, CompletionToken: item.GetCompletionToken()})
		return
	}
	r := item.GetActivityRequest()
	var in activityInput
	if err := json.Unmarshal([]byte(r.GetInput().GetValue()), &in); err != nil {
		in.Instance = "unreadable: " + err.Error()
	}
	id := w.load.History.AddExecution(&history.Execution{Instance: in.Instance, Step: r.GetName(), Node: w.node.Name,
		Input: in.Results, Begin: w.load.History.Now()})
	if w.chance(10) == 0 {
		pause(ctx, 100*time.Millisecond)
	}
	_, _ = hub.CompleteActivityTask(limit, &protos.ActivityResponse{InstanceId: r.GetWorkflowInstance().GetInstanceId(),
		TaskId: r.GetTaskId(), Result: payload(text(id)), CompletionToken: item.GetCompletionToken()})
}
