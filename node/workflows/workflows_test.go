package workflows_test

import (
	"testing"
	"time"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/node/workflows"
)

func TestWorkerOf_SpecificRetentionWins(t *testing.T) {
	zero, hour, day := time.Duration(0), time.Hour, 24*time.Hour
	for _, c := range []struct {
		given *component.WorkflowConfig
		want  workflow.Worker
	}{
		{nil, workflow.Worker{}},
		{&component.WorkflowConfig{MaxTurns: 2, MaxActivities: 3}, workflow.Worker{MaxTurns: 2, MaxActivities: 3}},
		{&component.WorkflowConfig{Retention: component.WorkflowRetention{Any: &day, Completed: &zero, Failed: &hour}},
			workflow.Worker{Retention: workflow.Retention{Completed: 1, Failed: hour, Terminated: day}}},
		{&component.WorkflowConfig{Retention: component.WorkflowRetention{Failed: &hour}},
			workflow.Worker{Retention: workflow.Retention{Failed: hour}}},
	} {
		if got := workflows.WorkerOf(c.given); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.given, got, c.want)
		}
	}
}
