package node

import "github.com/quorate/quorate/node/workflows"

// workflowAdmin returns the workflow operations of the admin API. They use the workflow engine of the node that serves
// the applications of this process. Usually this is n. After a takeover of the shared data directory, it is the earlier
// node of the process.
func workflowAdmin(n *Node) *workflows.Admin {
	engine := &n.apis.workflows
	if n.place.front != nil {
		engine = &n.place.front.apis.workflows
	}
	return &workflows.Admin{Engine: engine, Apps: n.catalogue.Apps, Logger: n.deps.Logger}
}
