package admin

import (
	"log/slog"
	"net/http"
	"strings"
	"time"
)

// audited wraps a handler. It logs the outcome of each administrative action that changes something or exports data. If
// another node forwarded the action, the log line names that node. The log line never names a user, because only the
// operating-system user that runs the node can call the admin API.
func audited(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !audits(r) {
			next.ServeHTTP(w, r)
			return
		}
		begun, seen := time.Now(), &witness{ResponseWriter: w}
		defer func() {
			outcome := "done"
			switch {
			case seen.status == 0, seen.broken && (r.Method != http.MethodGet || r.Context().Err() == nil):
				outcome = "broken off" // usually the reader ends a read by closing the connection
			case seen.status >= http.StatusBadRequest:
				outcome = "refused or failed"
			}
			about := []any{"action", actionOf(r.Method, r.URL.Path), "outcome", outcome, "status", seen.status, "took",
				time.Since(begun).Round(time.Millisecond)}
			if from := remoteNode(r.Context()); from != "" {
				about = append(about, "from", from)
			}
			log.Info("audit: administrative action", about...)
		}()
		next.ServeHTTP(seen, r)
	})
}

// actionOf returns the description of a request for the audit log, for example "save a backup". For an unknown request,
// it returns the method and the path.
func actionOf(method, path string) string {
	if rest, to := strings.CutPrefix(path, nodesPrefix); to {
		node, path, _ := strings.Cut(rest, "/")
		return actionOf(method, version+path) + " on node " + node
	}
	words := map[string]string{
		"GET " + BackupPath: "save a backup", "POST " + BackupPath: "restore a backup",
		"GET " + DebugBundlePath: "make a debug bundle", "POST " + ConsolePath: "make a link to the console",
		"POST " + VotersPath: "set the number of voters",
		"POST " + RemovePath: "remove a server", "POST " + LeavePath: "leave the cluster",
		"POST " + LockReleasePath: "release a lock", "POST " + JobChangePath: "run or delete a job",
		"POST " + TopicPublishPath: "publish a message", "GET " + topicMessagesPath: "read messages of a topic",
		"POST " + TopicReplayPath: "replay a topic", "POST " + TopicDeletePath: "delete a topic or a consumer group",
		"POST " + TopicRedrivePath:  "move dead letters back",
		"POST " + WorkflowStartPath: "start a workflow", "POST " + WorkflowChangePath: "change a workflow",
		"POST " + WorkflowPurgePath: "purge workflows", "POST " + WorkflowRerunPath: "rerun a workflow",
		"GET " + WorkflowPath:        "read payloads of a workflow",
		"GET " + WorkflowHistoryPath: "read payloads of a workflow",
		"POST " + ActorMovePath:      "move an actor", "POST " + ActorRebalancePath: "rebalance actors",
	}
	if text, known := words[method+" "+path]; known {
		return text
	}
	parts := strings.Split(strings.TrimPrefix(path, version), "/")
	switch {
	case len(parts) == 3 && parts[0] == "groups" && parts[2] == "transfer":
		return "transfer the leadership of group " + parts[1]
	case len(parts) == 3 && parts[0] == "groups" && parts[2] == "compare":
		return "compare the replicas of group " + parts[1]
	case len(parts) == 2 && parts[0] == "configuration":
		return "change items of configuration store " + parts[1]
	}
	return method + " " + path
}

// audits reports whether a request changes something or exports data.
func audits(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead || r.URL.Path == BackupPath ||
		r.URL.Path == DebugBundlePath || r.URL.Path == topicMessagesPath || r.URL.Query().Get("payloads") == "true"
}

// witness is a response writer that records the HTTP status of the response.
type witness struct {
	http.ResponseWriter
	status int
	broken bool // the answer has ended with an error after its status
}

func (w *witness) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *witness) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap returns the underlying writer to http.ResponseController.
func (w *witness) Unwrap() http.ResponseWriter { return w.ResponseWriter }
