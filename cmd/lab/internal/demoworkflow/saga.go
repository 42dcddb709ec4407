package demoworkflow

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dapr/durabletask-go/backend"
	"github.com/dapr/durabletask-go/workflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quorate/quorate/cmd/lab/internal/demokit"
)

const (
	initial  = 1_000_000              // goods of each kind in stock, and the credit of each customer
	shipTime = 100 * time.Millisecond // so that a kill hits orders on their way
	moon     = "the moon"             // no ship goes there
)

// order is the input of a workflow.
type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Item     string `json:"item"`
	Count    int    `json:"count"`
	Price    int    `json:"price"`
	To       string `json:"to"`
}

// run is one execution of an activity. If an activity is executed twice, the workflow uses the result of only one run.
type run struct {
	Step   string `json:"step"`
	ID     string `json:"id"` // of the execution
	Answer string `json:"answer"`
}

// booked is the answer of a step that was not refused.
const booked = "booked"

// outcome is the output of a workflow.
type outcome struct {
	Completed bool  `json:"completed"` // false: it was canceled, and all steps were undone
	Runs      []run `json:"runs"`      // in their order
}

// step is one step of an order: the activity with the given name, and the activity that undoes it. Both change the same
// number in the store, for example the stock of an item. The function key returns the key of this number, and change
// returns what the first activity adds to this number. A step that changes no number has only a name.
type step struct {
	name, undo string
	key        func(order) string
	change     func(order) int
}

func steps() []step {
	return []step{
		{"reserve", "release", func(o order) string { return "stock-" + o.Item },
			func(o order) int { return -o.Count }},
		{"charge", "refund", func(o order) string { return "credit-" + o.Customer },
			func(o order) int { return -o.Price }},
		{name: "ship"},
	}
}

// saga is the workflow.
func saga(ctx *workflow.WorkflowContext) (any, error) {
	var o order
	if err := ctx.GetInput(&o); err != nil {
		return nil, err
	}
	var out outcome
	call := func(activity string) (r run, err error) {
		again := &workflow.RetryPolicy{MaxAttempts: 1000, InitialRetryInterval: 200 * time.Millisecond}
		err = ctx.CallActivity(activity, workflow.WithActivityInput(o),
			workflow.WithActivityRetryPolicy(again)).Await(&r)
		out.Runs = append(out.Runs, r)
		return r, err
	}
	var undo []string
	for _, s := range steps() {
		r, err := call(s.name)
		if err != nil {
			return nil, err
		}
		if r.Answer != booked {
			for _, back := range slices.Backward(undo) {
				if _, err := call(back); err != nil {
					return nil, err
				}
			}
			return out, nil
		}
		undo = append(undo, s.undo)
	}
	out.Completed = true
	return out, nil
}

// shop has the activities.
type shop struct {
	node demokit.Sidecar
	runs string // path of the file with a line for each execution
}

// work runs a worker until ctx ends. It calls the node on the ports in DAPR_HTTP_PORT and DAPR_GRPC_PORT.
func work(ctx context.Context) error {
	s := shop{node: demokit.Beside(), runs: os.Getenv(runsVariable)}
	r := workflow.NewRegistry()
	err := r.AddWorkflowN("order", saga)
	for _, st := range steps() {
		if st.change == nil {
			err = errors.Join(err, r.AddActivityN(st.name, s.ship))
			continue
		}
		err = errors.Join(err, r.AddActivityN(st.name, s.booking(st.name, st.key, st.change)),
			r.AddActivityN(st.undo, s.booking(st.undo, st.key, func(o order) int { return -st.change(o) })))
	}
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("127.0.0.1:"+os.Getenv("DAPR_GRPC_PORT"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := workflow.NewClientWithLogger(conn, silent{})
	// The node may start later than the worker. Once it has connected, the SDK reconnects by itself.
	if err := demokit.Poll(ctx, func() error { return client.StartWorker(ctx, r) }); err == nil {
		<-ctx.Done()
	}
	return nil
}

// booking returns an activity that changes a number once for each order.
func (s shop) booking(name string, key func(order) string, change func(order) int) workflow.Activity {
	return func(c workflow.ActivityContext) (any, error) {
		o, r, err := s.begin(c, name)
		if err != nil {
			return nil, err
		}
		return s.book(c.Context(), key(o), change(o), noteOf(o.ID, name), r)
	}
}

func noteOf(id, step string) string { return "note-" + id + "-" + step }

// book changes a number and saves a note in one transaction. If the note exists, it changes nothing and returns the
// run in the note.
func (s shop) book(ctx context.Context, key string, change int, note string, r run) (run, error) {
	for {
		var first run
		if _, found, err := s.node.Get(ctx, note, &first); found || err != nil {
			return first, err
		}
		number := initial
		etag, _, err := s.node.Get(ctx, key, &number)
		if err != nil {
			return r, err
		}
		next := number + change
		if r.Answer = booked; next < 0 {
			r.Answer, next = "too little is left", number
		}
		saved, err := s.node.Save(ctx, demokit.If(key, etag, next), demokit.If(note, "", r))
		if saved || err != nil {
			return r, err
		}
	}
}

// ship takes a while, and refuses orders to the moon.
func (s shop) ship(c workflow.ActivityContext) (any, error) {
	o, r, err := s.begin(c, "ship")
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(shipTime):
	case <-c.Context().Done():
		return nil, c.Context().Err()
	}
	if r.Answer = booked; o.To == moon {
		r.Answer = "no ship goes to " + moon
	}
	return r, nil
}

// begin begins an execution of the activity with the given name. It reads the order, gives the execution an id, and
// appends the id to the file of executions.
func (s shop) begin(c workflow.ActivityContext, name string) (o order, r run, err error) {
	if err := c.GetInput(&o); err != nil {
		return o, r, err
	}
	r = run{Step: name, ID: rand.Text()}
	f, err := os.OpenFile(filepath.Clean(s.runs), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return o, r, err
	}
	_, err = fmt.Fprintf(f, "%s\n", r.ID)
	return o, r, errors.Join(err, f.Close())
}

// runsVariable is the environment variable with the path of the file for executions.
const runsVariable = "DEMO_RUNS"

// silent is a logger for the SDK that writes nothing. The SDK would log each lost connection to a node. The demo
// already prints the kills that break these connections.
type silent struct{}

var _ backend.Logger = silent{}

func (silent) Debug(...any)          {}
func (silent) Debugf(string, ...any) {}
func (silent) Info(...any)           {}
func (silent) Infof(string, ...any)  {}
func (silent) Warn(...any)           {}
func (silent) Warnf(string, ...any)  {}
func (silent) Error(...any)          {}
func (silent) Errorf(string, ...any) {}
