package raftfsm_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/workflowtest"
	"github.com/quorate/quorate/raftfsm"
)

// flowMetric returns the value of a series of the application flowApp, or the number of values of a histogram. label
// is the value of the label besides app_id; "" = there is no such label.
func flowMetric(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			app, other := "", ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "app_id" {
					app = l.GetValue()
				} else {
					other = l.GetValue()
				}
			}
			if app == flowApp && other == label {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

func TestWorkflows_Metrics(t *testing.T) {
	t.Parallel()
	var reg *prometheus.Registry
	c := startCluster(t, 1, func(o *raftfsm.Options) { reg = o.Registerer.(*prometheus.Registry) })
	e := flows(t, c.running()[0])
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	want := func(name, label string, n float64) {
		t.Helper()
		if got := flowMetric(t, reg, name, label); got != n {
			t.Errorf("%s %s is %v, want %v", name, label, got, n)
		}
	}
	startFlow(t, ctx, e, "a", "order")
	eventually(t, func() error { // its turn has found no worker
		if flowMetric(t, reg, "quorate_workflow_without_worker", "") != 1 ||
			flowMetric(t, reg, "quorate_workflow_waiting_seconds", "") <= 0 {
			return errors.New("the instance does not wait for a worker")
		}
		return nil
	})
	w := workflowtest.Connect(t, e, flowApp)
	retry := workflowtest.Sleep(1, time.Millisecond)
	retry.GetCreateTimer().Origin = &protos.CreateTimerAction_ActivityRetry{
		ActivityRetry: &protos.TimerOriginActivityRetry{}}
	w.Turn("a").Do(workflowtest.Call(0, "pay"))
	pay := w.Activity("pay")
	want("quorate_workflow_without_worker", "", 0)
	want("quorate_workflow_waiting_seconds", "", 0)
	pay.Fail("no")
	w.Turn("a").Do(retry)
	w.Turn("a").Do(workflowtest.Call(2, "pay"))
	w.Activity("pay").Return("paid")
	must(t, w.Turn("a").Respond(&protos.WorkflowResponse{InstanceId: "a", Actions: []*protos.WorkflowAction{
		{Id: 3, WorkflowActionType: &protos.WorkflowAction_WorkflowVersionNotAvailable{
			WorkflowVersionNotAvailable: &protos.WorkflowVersionNotAvailableAction{}}}}}))
	want("quorate_workflow_stalled", "", 1)
	w.Reconnect()
	w.Turn("a").Do(workflowtest.Complete(3, ""))
	_, err := e.Wait(ctx, flowApp, "a", workflow.Completed, false)
	must(t, err)
	want("quorate_workflow_stalled", "", 0)
	want("quorate_workflows_total", "created", 1)
	want("quorate_workflows_total", "completed", 1)
	want("quorate_workflows_total", "stalled", 1)
	want("quorate_workflow_activities_total", "failed", 1)
	want("quorate_workflow_activities_total", "completed", 1)
	want("quorate_workflow_activities_total", "retried", 1)
	want("quorate_workflow_activity_seconds", "", 2)
	if n := flowMetric(t, reg, "quorate_workflow_turn_seconds", ""); n < 5 {
		t.Errorf("%v turns have a duration", n)
	}
}
