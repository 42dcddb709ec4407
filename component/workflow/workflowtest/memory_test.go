package workflowtest_test

import (
	"testing"

	"github.com/quorate/quorate/component/workflow/workflowtest"
)

func TestMemory_PassesTheSuite(t *testing.T) {
	m := workflowtest.NewMemory()
	t.Cleanup(m.Close)
	workflowtest.Test(t, m)
}
