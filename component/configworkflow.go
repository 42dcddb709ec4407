package component

import (
	"time"

	"go.yaml.in/yaml/v3"
)

// WorkflowConfig is the section spec.workflow.
type WorkflowConfig struct {
	// MaxTurns and MaxActivities limit how many workflow turns and activities the workers of one sidecar run at a
	// time; 0 = no limit.
	MaxTurns, MaxActivities int
	Retention               WorkflowRetention
}

// WorkflowRetention is how long a workflow instance is kept after its end. Completed, Failed and Terminated are for
// instances with that final status. If the field for a status is nil, Any applies instead. If Any is nil too, the
// instance is kept until it is purged.
type WorkflowRetention struct{ Any, Completed, Failed, Terminated *time.Duration }

// For returns how long an instance is kept, or nil if the instance is kept until it is purged. The caller passes the
// field of r for the final status of the instance, such as r.Failed.
func (r *WorkflowRetention) For(status *time.Duration) *time.Duration {
	if status != nil {
		return status
	}
	return r.Any
}

func (p *docParser) workflow(n *yaml.Node, c *Configuration) {
	if isNull(n) {
		return
	}
	const what = "spec.workflow"
	w := copyOf(c.Workflow, WorkflowConfig{})
	known := fields{
		"maxConcurrentWorkflowInvocations": func(n *yaml.Node) {
			w.MaxTurns = p.invocations(n, what+".maxConcurrentWorkflowInvocations")
		},
		"maxConcurrentActivityInvocations": func(n *yaml.Node) {
			w.MaxActivities = p.invocations(n, what+".maxConcurrentActivityInvocations")
		},
		"stateRetentionPolicy": func(n *yaml.Node) { p.retention(n, what+".stateRetentionPolicy", &w.Retention) },
	}
	for _, name := range []string{"globalMaxConcurrentWorkflowInvocations", "globalMaxConcurrentActivityInvocations",
		"workflowConcurrencyLimits", "activityConcurrencyLimits"} {
		known[name] = func(n *yaml.Node) {
			if !isNull(n) {
				c.unused(p.pos(n), what+"."+name+" has no effect here",
					"bound each sidecar with maxConcurrentWorkflowInvocations and maxConcurrentActivityInvocations")
			}
		}
	}
	p.readFields(n, what, known)
	c.Workflow = w
}

func (p *docParser) invocations(n *yaml.Node, what string) int {
	if isNull(n) {
		return 0
	}
	v := p.whole(n, what)
	if v < 0 {
		p.problems.add(p.pos(n), "use a positive number, or remove the field", "%s is %d", what, v)
	}
	return max(v, 0)
}

func (p *docParser) retention(n *yaml.Node, what string, r *WorkflowRetention) {
	if isNull(n) {
		return
	}
	read := func(name string, to **time.Duration) func(*yaml.Node) {
		return func(n *yaml.Node) {
			if *to = nil; !isNull(n) {
				d := p.span(n, what+"."+name)
				*to = &d
			}
		}
	}
	p.readFields(n, what, fields{"anyTerminal": read("anyTerminal", &r.Any), "completed": read("completed",
		&r.Completed), "failed": read("failed", &r.Failed), "terminated": read("terminated", &r.Terminated)})
}
