package raftfsm_test

import (
	"testing"

	"github.com/quorate/quorate/component/workflow/workflowtest"
)

// The engine passes the suite of all engines.
func TestWorkflows_ConformOnOneServer(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	workflowtest.Test(t, flows(t, c.running()[0]))
}
