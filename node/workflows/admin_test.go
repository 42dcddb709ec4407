package workflows_test

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/workflowtest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node/workflows"
)

// fixture is an Admin over an engine in memory.
type fixture struct {
	*workflows.Admin
	t      *testing.T
	engine *workflowtest.Memory
	log    bytes.Buffer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, engine: workflowtest.NewMemory()}
	t.Cleanup(f.engine.Close)
	f.Admin = &workflows.Admin{Engine: f.engine, Logger: slog.New(slog.NewTextHandler(&f.log, nil)),
		Apps: func(context.Context) ([]schema.AppInstance, error) {
			return []schema.AppInstance{{App: "shop"}, {App: "idle"}, {App: "bank", Namespace: "prod"}}, nil
		}}
	return f
}

func (f *fixture) start(owner, id, name string) {
	f.t.Helper()
	if err := f.engine.Start(f.t.Context(), owner, &protos.CreateInstanceRequest{InstanceId: id, Name: name,
		Input: wrapperspb.String("secret")}); err != nil {
		f.t.Fatal(err)
	}
}

// refused fails unless err has the code and the text.
func (f *fixture) refused(err error, code fault.Code, text string) {
	f.t.Helper()
	if !fault.Is(err, code) || !strings.Contains(fault.Text(err), text) {
		f.t.Errorf("the error is %v, want code %v and the text %q", err, code, text)
	}
}

func ref(id string) schema.WorkflowRef { return schema.WorkflowRef{App: "shop", ID: id} }

func TestAdmin_ListsInstancesOfAllApplications(t *testing.T) {
	f := newFixture(t)
	for i := range 3 {
		f.start("shop", "s"+strconv.Itoa(i), "order")
		f.start("prod/bank", "b"+strconv.Itoa(i), "pay")
	}
	var got []string
	for after, pages := "", 0; ; pages++ {
		page, err := f.ListWorkflows(t.Context(), schema.WorkflowSelection{Limit: 2, After: after})
		if err != nil || len(page.Instances) > 2 || pages > 9 {
			t.Fatal(page, err)
		}
		for _, i := range page.Instances {
			got = append(got, i.Namespace+" "+i.App+" "+i.ID+" "+i.Status)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	want := "prod bank b0 PENDING,prod bank b1 PENDING,prod bank b2 PENDING, shop s0 PENDING, shop s1 PENDING, " +
		"shop s2 PENDING"
	if text := strings.Join(got, ","); text != want {
		t.Errorf("listed %s", text)
	}
	page, err := f.ListWorkflows(t.Context(), schema.WorkflowSelection{App: "shop", Statuses: []string{"failed"}})
	if err != nil || page.Instances == nil || len(page.Instances) != 0 {
		t.Errorf("failed instances: %+v, %v", page, err)
	}
	page, err = f.ListWorkflows(t.Context(), schema.WorkflowSelection{Name: "oder"})
	if err != nil || !strings.Contains(page.Note, "did you mean order?") {
		t.Errorf("of a misspelt workflow: %+v, %v", page, err)
	}
	_, err = f.ListWorkflows(t.Context(), schema.WorkflowSelection{App: "shpo"})
	f.refused(err, fault.NotFound, "application shpo has no workflows; did you mean shop?")
	_, err = f.ListWorkflows(t.Context(), schema.WorkflowSelection{Statuses: []string{"runing"}})
	f.refused(err, fault.Invalid, "did you mean RUNNING?")
	_, err = f.ListWorkflows(t.Context(), schema.WorkflowSelection{After: "x"})
	f.refused(err, fault.Invalid, "not one that workflows list has printed")
}

func TestAdmin_ShowsOneInstance(t *testing.T) {
	f := newFixture(t)
	w := workflowtest.Connect(t, f.engine, "shop")
	f.start("shop", "order-7", "order")
	w.Turn("order-7").Do(workflowtest.Call(0, "pay"))
	w.Activity("pay").Fail("no money")
	w.Turn("order-7").Do(workflowtest.End(1, protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED, "output", nil))
	if _, err := f.engine.Wait(t.Context(), "shop", "order-7", workflow.Completed, false); err != nil {
		t.Fatal(err)
	}
	d, err := f.ShowWorkflow(t.Context(), ref("order-7"), false)
	if err != nil || d.Status != "COMPLETED" || d.Turns != 2 || d.Workers != 1 || len(d.Steps) != 1 ||
		d.Steps[0].Name != "pay" || d.Steps[0].Failure.Message != "no money" || d.Input != nil || d.Output != nil {
		t.Errorf("%+v, %v", d, err)
	}
	if f.log.Len() != 0 {
		t.Errorf("a question without payloads left %s", &f.log)
	}
	d, err = f.ShowWorkflow(t.Context(), ref("order-7"), true)
	if err != nil || d.Input == nil || *d.Input != "secret" || d.Output == nil || *d.Output != "output" {
		t.Errorf("with payloads: %+v, %v", d, err)
	}
	if !strings.Contains(f.log.String(), "instance=order-7") {
		t.Errorf("reading payloads left %s", &f.log)
	}
	all, err := f.WorkflowHistory(t.Context(), ref("order-7"), 0, 100, false)
	if err != nil || all.More || len(all.Events) != d.Events {
		t.Fatalf("%+v, %v", all, err)
	}
	part, err := f.WorkflowHistory(t.Context(), ref("order-7"), 1, 2, false)
	if err != nil || !part.More || len(part.Events) != 2 || part.Events[0].Position != 1 ||
		part.Events[1].Type != all.Events[2].Type {
		t.Errorf("%+v, %v", part, err)
	}
	_, err = f.ShowWorkflow(t.Context(), ref("oder-7"), false)
	f.refused(err, fault.NotFound, "has no workflow instance oder-7; did you mean order-7?")
	_, err = f.WorkflowHistory(t.Context(), schema.WorkflowRef{App: "shop"}, 0, 1, false)
	f.refused(err, fault.Invalid, "no workflow instance is named")
	f.start("prod/shop", "order-7", "order")
	_, err = f.ShowWorkflow(t.Context(), ref("order-7"), false)
	f.refused(err, fault.Conflict, "several namespaces")
	d, err = f.ShowWorkflow(t.Context(), schema.WorkflowRef{App: "shop", Namespace: "prod", ID: "order-7"}, false)
	if err != nil || d.Status != "PENDING" || d.Namespace != "prod" {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestAdmin_StartsOnlyForKnownApplications(t *testing.T) {
	f := newFixture(t)
	c, err := f.StartWorkflow(t.Context(), schema.WorkflowStart{WorkflowRef: ref("a"), Name: "order", Input: new("7")})
	if err != nil || c.Status != "PENDING" || !strings.Contains(c.Note, "no worker of shop is connected") {
		t.Errorf("%+v, %v", c, err)
	}
	workflowtest.Connect(t, f.engine, "shop").Turn("a")
	c, err = f.StartWorkflow(t.Context(), schema.WorkflowStart{WorkflowRef: ref(""), Name: "oder"})
	if err != nil || c.ID == "" || !strings.Contains(c.Note, "did you mean order?") {
		t.Errorf("of a misspelt workflow: %+v, %v", c, err)
	}
	c, err = f.StartWorkflow(t.Context(), schema.WorkflowStart{WorkflowRef: schema.WorkflowRef{App: "bank"}, Name: "w"})
	if err != nil || c.Namespace != "prod" {
		t.Errorf("in the only namespace of an application: %+v, %v", c, err)
	}
	for _, one := range []struct {
		r    schema.WorkflowStart
		code fault.Code
		want string
	}{
		{schema.WorkflowStart{WorkflowRef: ref("a"), Name: "order"}, fault.Conflict, "an active workflow with ID 'a'"},
		{schema.WorkflowStart{WorkflowRef: ref("a/b"), Name: "order"}, fault.Invalid, "cannot be the id"},
		{schema.WorkflowStart{WorkflowRef: ref("b")}, fault.Invalid, "the name of the workflow is missing"},
		{schema.WorkflowStart{WorkflowRef: ref("b"), Name: "w", Input: new("x")}, fault.Invalid, "is not JSON"},
		{schema.WorkflowStart{WorkflowRef: schema.WorkflowRef{App: "shpo"}, Name: "w"}, fault.NotFound,
			"no application shpo is known in this cluster; did you mean shop?"},
		{schema.WorkflowStart{Name: "w"}, fault.Invalid, "no application is named"},
	} {
		_, err := f.StartWorkflow(t.Context(), one.r)
		f.refused(err, one.code, one.want)
	}
}

func TestAdmin_PauseWithoutWorkerSaysWhenItTakesEffect(t *testing.T) {
	f := newFixture(t)
	f.start("shop", "a", "order")
	c, err := f.ChangeWorkflow(t.Context(), schema.WorkflowChange{WorkflowRef: ref("a"), Action: schema.WorkflowPause})
	if err != nil || c.Status != "PENDING" || c.Note != "the change is stored; it takes effect when a worker of shop "+
		"connects" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestAdmin_ChangesInstances(t *testing.T) {
	f := newFixture(t)
	w := workflowtest.Connect(t, f.engine, "shop")
	f.start("shop", "a", "order")
	w.Turn("a").Do(workflowtest.Await(0, "approve", time.Hour))
	change := func(r schema.WorkflowChange) (schema.WorkflowChanged, error) {
		r.WorkflowRef = ref("a")
		return f.ChangeWorkflow(t.Context(), r)
	}
	_, err := change(schema.WorkflowChange{Action: schema.WorkflowRaise, Event: "aprove"})
	f.refused(err, fault.Conflict, "waits for approve, not for the event aprove; did you mean approve?")
	for _, event := range []schema.WorkflowChange{{Event: "aprove", Early: true}, {Event: "Approve", Data: new("1")}} {
		event.Action = schema.WorkflowRaise
		if c, err := change(event); err != nil || c.Status != "RUNNING" {
			t.Errorf("%+v, %v", c, err)
		}
		w.Turn("a").Do()
	}
	_, err = change(schema.WorkflowChange{Action: schema.WorkflowRaise, Event: "e", Data: new("x")})
	f.refused(err, fault.Invalid, "is not JSON")
	_, err = change(schema.WorkflowChange{Action: "stop"})
	f.refused(err, fault.Invalid, "stop is no change of a workflow")
	_, err = change(schema.WorkflowChange{Action: schema.WorkflowResume})
	f.refused(err, fault.Conflict, "is not paused: its status is RUNNING")

	// do makes a change. While the change waits for the worker, the worker answers with the actions.
	do := func(r schema.WorkflowChange, want string, actions ...*protos.WorkflowAction) {
		t.Helper()
		done := make(chan schema.WorkflowChanged)
		go func() {
			c, err := change(r)
			if err != nil {
				t.Errorf("%s: %v", r.Action, err)
			}
			done <- c
		}()
		w.Turn("a").Do(actions...)
		if c := <-done; c.Status != want {
			t.Errorf("%s: %+v", r.Action, c)
		}
	}
	do(schema.WorkflowChange{Action: schema.WorkflowPause, Reason: "r"}, "SUSPENDED")
	_, err = change(schema.WorkflowChange{Action: schema.WorkflowPause})
	f.refused(err, fault.Conflict, "is paused already")
	do(schema.WorkflowChange{Action: schema.WorkflowResume}, "RUNNING")
	_, err = f.PurgeWorkflows(t.Context(), schema.WorkflowPurge{WorkflowRef: ref("a")})
	f.refused(err, fault.Conflict, "has not ended: its status is RUNNING")
	_, err = f.RerunWorkflow(t.Context(), schema.WorkflowRerun{WorkflowRef: ref("a")})
	f.refused(err, fault.Conflict, "has not ended")
	do(schema.WorkflowChange{Action: schema.WorkflowTerminate, Data: new(`"bye"`)}, "TERMINATED")
	_, err = change(schema.WorkflowChange{Action: schema.WorkflowPause})
	f.refused(err, fault.Conflict, "has ended with the status TERMINATED")
	if !strings.Contains(f.log.String(), "action=terminate") || strings.Contains(f.log.String(), "bye") {
		t.Errorf("the log is %s", &f.log)
	}

	_, err = f.RerunWorkflow(t.Context(), schema.WorkflowRerun{WorkflowRef: ref("a"), Event: 77})
	f.refused(err, fault.NotFound, "does not have history event with ID '77'")
	c, err := f.RerunWorkflow(t.Context(), schema.WorkflowRerun{WorkflowRef: ref("a"), NewID: "b"})
	if err != nil || c.ID != "b" {
		t.Errorf("rerun: %+v, %v", c, err)
	}
}

func TestAdmin_PurgesWhatASelectionNames(t *testing.T) {
	f := newFixture(t)
	w := workflowtest.Connect(t, f.engine, "shop")
	for _, id := range []string{"a", "b", "c"} {
		f.start("shop", id, "order")
		turn := w.Turn(id)
		if id != "c" {
			turn.Do(workflowtest.Complete(0, ""))
			if _, err := f.engine.Wait(t.Context(), "shop", id, workflow.Completed, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	shop := schema.WorkflowRef{App: "shop"}
	_, err := f.PurgeWorkflows(t.Context(), schema.WorkflowPurge{WorkflowRef: shop, Statuses: []string{"running"}})
	f.refused(err, fault.Invalid, "have not ended")
	_, err = f.PurgeWorkflows(t.Context(), schema.WorkflowPurge{WorkflowRef: shop, Force: true})
	f.refused(err, fault.Invalid, "force needs the id")
	p, err := f.PurgeWorkflows(t.Context(), schema.WorkflowPurge{WorkflowRef: shop, Prefix: "b"})
	if err != nil || p.Removed != 1 || p.More {
		t.Errorf("%+v, %v", p, err)
	}
	p, err = f.PurgeWorkflows(t.Context(), schema.WorkflowPurge{WorkflowRef: shop, Statuses: []string{"completed"}})
	if err != nil || p.Removed != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	p, err = f.PurgeWorkflows(t.Context(), schema.WorkflowPurge{WorkflowRef: ref("c"), Force: true})
	if err != nil || p.Removed != 1 {
		t.Errorf("%+v, %v", p, err)
	}
}

// partly is an engine whose purge of a selection leaves an instance out.
type partly struct{ *workflowtest.Memory }

func (partly) PurgeMatching(context.Context, string, workflow.Filter, bool) (int, bool, error) {
	return 7, false, fault.New(fault.Invalid, "test", "instance a has a child that runs")
}

func TestAdmin_PurgeThatLeavesInstancesOutSaysWhatItRemoved(t *testing.T) {
	f := newFixture(t)
	f.start("shop", "a", "order")
	f.Engine = partly{f.engine}
	_, err := f.PurgeWorkflows(t.Context(), schema.WorkflowPurge{WorkflowRef: schema.WorkflowRef{App: "shop"}})
	f.refused(err, fault.Invalid, "instance a has a child that runs (instances that were removed: 7)")
}
