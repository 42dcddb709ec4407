package node

import "github.com/quorate/quorate/node/workflows"

// workflowAdmin returns what shows and changes workflows for operators.
func workflowAdmin(n *Node) *workflows.Admin {
	return &workflows.Admin{Engine: &n.apis.workflows, Apps: n.catalogue.Apps, Logger: n.deps.Logger}
}
