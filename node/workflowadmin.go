package node

import "github.com/quorate/quorate/node/workflows"

// workflowAdmin returns the part of the admin API about workflows. It uses the engine of the node that serves the
// applications. After a takeover of the shared directory, that is the other node of this process.
func workflowAdmin(n *Node) *workflows.Admin {
	engine := &n.apis.workflows
	if n.place.front != nil {
		engine = &n.place.front.apis.workflows
	}
	return &workflows.Admin{Engine: engine, Apps: n.catalogue.Apps, Logger: n.deps.Logger}
}
