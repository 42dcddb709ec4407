package component_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component"
)

func TestParseConfiguration_Workflow(t *testing.T) {
	zero, hour, day := time.Duration(0), time.Hour, 24*time.Hour
	for spec, want := range map[string]*component.WorkflowConfig{
		"  workflow:\n": nil,
		"  workflow: {maxConcurrentWorkflowInvocations: 5, maxConcurrentActivityInvocations: 7}\n": {MaxTurns: 5,
			MaxActivities: 7},
		"  workflow: {stateRetentionPolicy: {anyTerminal: 24h, completed: 0s, failed: 1h}}\n": {
			Retention: component.WorkflowRetention{Any: &day, Completed: &zero, Failed: &hour}},
	} {
		c, err := component.ParseConfiguration(document(t, "Configuration", spec))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, c.Workflow); diff != "" || len(c.Unused) > 0 {
			t.Errorf("%s: %s %v", spec, diff, c.Unused)
		}
	}
}

func TestParseConfiguration_WorkflowsOfSeveralDocumentsAreMerged(t *testing.T) {
	a := document(t, "Configuration", "  workflow: {maxConcurrentWorkflowInvocations: 5, stateRetentionPolicy: "+
		"{anyTerminal: 24h, completed: 1h}}\n")
	b := document(t, "Configuration", "  workflow: {maxConcurrentActivityInvocations: 7, stateRetentionPolicy: "+
		"{completed: 2h}}\n")
	c, err := component.ParseConfigurations([]component.Document{a, b}, component.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	day, two := 24*time.Hour, 2*time.Hour
	want := &component.WorkflowConfig{MaxTurns: 5, MaxActivities: 7,
		Retention: component.WorkflowRetention{Any: &day, Completed: &two}}
	if diff := cmp.Diff(want, c.Workflow); diff != "" {
		t.Error(diff)
	}
}

func TestParseConfiguration_RefusesOddWorkflowFields(t *testing.T) {
	for spec, want := range map[string]string{
		"maxConcurrentWorkflowInvocations: -1":       "is -1",
		"maxConcurrentActivityInvocations: many":     "use a whole number",
		"stateRetentionPolicy: {anyTerminal: -1h}":   "use a duration",
		"stateRetentionPolicy: {completed: forever}": "use a duration",
		"stateRetentionPolicy: {completd: 1h}":       "did you mean completed?",
		"maxConcurrentWorkflows: 1":                  "maxConcurrentWorkflows",
	} {
		_, err := component.ParseConfiguration(document(t, "Configuration", "  workflow: {"+spec+"}\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", spec, err, want)
		}
	}
	c, err := component.ParseConfiguration(document(t, "Configuration",
		"  workflow: {globalMaxConcurrentWorkflowInvocations: 3}\n"))
	if err != nil || len(c.Unused) != 1 || !strings.Contains(c.Unused[0].String(), "has no effect") {
		t.Errorf("a bound of the cluster: %v, %v", c.Unused, err)
	}
}
