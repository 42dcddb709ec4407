package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dapr/durabletask-go/workflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The operations on workflows. A client starts an instance, waits until it is completed, and checks its output. The
// worker and the clients use Dapr's SDK for Go. They run in this process and share one connection.
const (
	runChain  operation = "chain of five activities"
	runFanOut operation = "fan-out of 100 activities"
	runTimer  operation = "timer of one second"
)

const (
	chainLength  = 5
	fanWidth     = 100
	timersAtOnce = 500
	timerTime    = time.Second
	instanceTime = 5 * time.Minute // timeout of one instance
)

// outputs has the expected output of each workflow, as JSON.
var outputs = map[operation]string{runChain: "32", runFanOut: "9900", runTimer: "1"}

// clients returns the numbers of clients with which an operation is measured.
func (o operation) clients(s *settings) []int {
	switch {
	case o.fires():
		return s.clients[len(s.clients)-1:]
	case o == runChain:
		return s.instances
	case o == runFanOut:
		return []int{1}
	case o == runTimer:
		return []int{timersAtOnce}
	}
	return s.clients
}

// workflows returns the workflows of the measurement. Their names are those of the operations.
func workflows() (*workflow.Registry, error) {
	r := workflow.NewRegistry()
	if err := r.AddActivityN("double", func(ctx workflow.ActivityContext) (any, error) {
		var n int
		err := ctx.GetInput(&n)
		return 2 * n, err
	}); err != nil {
		return nil, err
	}
	for op, code := range map[operation]workflow.Workflow{runChain: chain, runFanOut: fanOut, runTimer: timer} {
		if err := r.AddWorkflowN(string(op), code); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func chain(ctx *workflow.WorkflowContext) (any, error) {
	n := 1
	for range chainLength {
		if err := ctx.CallActivity("double", workflow.WithActivityInput(n)).Await(&n); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func fanOut(ctx *workflow.WorkflowContext) (any, error) {
	var tasks []workflow.Task
	for i := range fanWidth {
		tasks = append(tasks, ctx.CallActivity("double", workflow.WithActivityInput(i)))
	}
	sum := 0
	for _, task := range tasks {
		var n int
		if err := task.Await(&n); err != nil {
			return nil, err
		}
		sum += n
	}
	return sum, nil
}

func timer(ctx *workflow.WorkflowContext) (any, error) {
	return 1, ctx.CreateTimer(timerTime).Await(nil)
}

// engine is a system that runs workflows of this process.
type engine struct {
	*processes
	title, text string
	conn        *grpc.ClientConn
	client      *workflow.Client
	stop        context.CancelFunc // of the worker
}

// startEngine connects a worker to the gRPC API of a running system, and waits until each workflow has completed once.
func startEngine(ctx context.Context, p *processes, title, text, address string) (_ store, err error) {
	e := &engine{processes: p, title: title, text: text, stop: func() {}}
	defer func() {
		if err != nil {
			err = e.failed(err)
			e.end()
		}
	}()
	e.conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	r, err := workflows()
	if err != nil {
		return nil, err
	}
	e.client = workflow.NewClientWithLogger(e.conn, silent{})
	var working context.Context
	working, e.stop = context.WithCancel(ctx)
	if err := until(ctx, func() error { return e.client.StartWorker(working, r) }); err != nil {
		return nil, err
	}
	for op := range outputs {
		if err := until(ctx, func() error {
			ctx, cancel := context.WithTimeout(ctx, 2*readyTime)
			defer cancel()
			return e.run(ctx, op)
		}); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (e *engine) name() string  { return e.title }
func (e *engine) about() string { return e.text + ", worker and client durabletask-go" }

func (e *engine) end() {
	e.stop()
	if e.conn != nil {
		_ = e.conn.Close() // errors do not matter, because the server is killed next
	}
	e.processes.end()
}

// run starts an instance, waits until it is completed, and checks its output.
func (e *engine) run(ctx context.Context, op operation) error {
	ctx, cancel := context.WithTimeout(ctx, instanceTime)
	defer cancel()
	id, err := e.client.ScheduleWorkflow(ctx, string(op))
	if err != nil {
		return err
	}
	state, err := e.client.WaitForWorkflowCompletion(ctx, id, workflow.WithFetchPayloads(true))
	if err != nil {
		return fmt.Errorf("instance %s: %w", id, err)
	}
	if got := state.Output.GetValue(); got != outputs[op] || state.RuntimeStatus != workflow.StatusCompleted {
		return fmt.Errorf("instance %s has the output %q instead of %s: %s", id, got, outputs[op], state)
	}
	return nil
}

// measure implements meter. It warms up for a quarter of the duration.
func (e *engine) measure(ctx context.Context, f *figures, op operation, clients int, _ string,
	duration time.Duration) error {
	call := func(ctx context.Context, _, _ int) error { return e.run(ctx, op) }
	if err := loop(ctx, &figures{}, e, min(clients, 10), duration/4, call); err != nil {
		return err
	}
	own := strconv.Itoa(os.Getpid())
	before, known := cpuTime(own)
	err := loop(ctx, f, e, clients, duration, call)
	if after, ok := cpuTime(own); ok && known {
		f.worker += after - before
	}
	return err
}

// silent is a logger of durabletask-go that writes nothing. The logs are not needed, because the function run reports
// failed instances.
type silent struct{}

func (silent) Debug(...any)          {}
func (silent) Debugf(string, ...any) {}
func (silent) Info(...any)           {}
func (silent) Infof(string, ...any)  {}
func (silent) Warn(...any)           {}
func (silent) Warnf(string, ...any)  {}
func (silent) Error(...any)          {}
func (silent) Errorf(string, ...any) {}

// workflowsQuorate returns an opener that starts one node and a worker. The title selects the quorate program, as in
// findQuorate.
func workflowsQuorate(title string) opener {
	return func(ctx context.Context, s *settings, dir string) (store, error) {
		program, p, err := findQuorate(title, s, dir)
		if p == nil || err != nil {
			return nil, err
		}
		ports, err := freePorts(1)
		if err != nil {
			return nil, err
		}
		if _, err := p.startCluster(ctx, program, 1, append([]string{"--app-id", "app", "--enable-grpc=true",
			"--grpc-port", ports[0]}, s.quorateArgs...)...); err != nil {
			defer p.end()
			return nil, p.failed(err)
		}
		return startEngine(ctx, p, title, strings.TrimSpace(fmt.Sprintf("%s, one node %s",
			firstLine(program, "version"), strings.Join(s.quorateArgs, " "))), "127.0.0.1:"+ports[0])
	}
}

// workflowsDaprd starts Dapr and a worker. Dapr consists of a sidecar, a placement server, a scheduler and a Redis
// server that does not sync its writes.
func workflowsDaprd(ctx context.Context, s *settings, dir string) (store, error) {
	d, err := startDapr(s, dir, 1)
	if err != nil {
		return nil, err
	}
	return startEngine(ctx, d.processes, "daprd", d.text, d.grpc[0])
}
