package admin_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
)

var update = flag.Bool("update", false, "write the answers that came into testdata")

// adminFunc is a Node with a status only.
type adminFunc func() (schema.NodeStatus, error)

func (f adminFunc) Status(context.Context) (schema.NodeStatus, error) { return f() }

func (f adminFunc) ConfigurationItems(context.Context, string, []string) ([]configurations.Change, error) {
	_, err := f()
	return nil, err
}

func (f adminFunc) WriteConfiguration(context.Context, string, []configurations.Change) ([]string, error) {
	_, err := f()
	return nil, err
}

func (f adminFunc) WatchConfiguration(context.Context, string, []string) (configuration.Subscription, error) {
	_, err := f()
	return nil, err
}

func (f adminFunc) Members(context.Context) ([]schema.MemberStatus, error) {
	_, err := f()
	return nil, err
}

func (f adminFunc) Apps(context.Context) ([]schema.AppInstance, error) {
	_, err := f()
	return nil, err
}

func (f adminFunc) TransferLeader(context.Context, uint64, string) (schema.TransferResult, error) {
	_, err := f()
	return schema.TransferResult{}, err
}

func (f adminFunc) CompareReplicas(context.Context, uint64) (schema.Comparison, error) {
	_, err := f()
	return schema.Comparison{}, err
}

func (f adminFunc) Remove(context.Context, string) (schema.RemoveResult, error) {
	_, err := f()
	return schema.RemoveResult{}, err
}

func (f adminFunc) ListJobs(context.Context, schema.JobSelection) ([]schema.JobStatus, error) {
	return nil, nil
}
func (f adminFunc) ChangeJob(context.Context, schema.JobChange) (schema.JobStatus, error) {
	return schema.JobStatus{}, nil
}
func (f adminFunc) ListTopics(context.Context, string, string) ([]schema.TopicStatus, error) {
	return nil, nil
}
func (f adminFunc) PublishMessage(context.Context, schema.TopicPublish) (schema.TopicPublished, error) {
	return schema.TopicPublished{}, nil
}
func (f adminFunc) ReadMessages(_ context.Context, r schema.TopicRead, take func(schema.TopicLine) error) error {
	if r.Topic == "none" {
		return fault.New(fault.NotFound, "test", "no topic none")
	}
	if err := take(schema.TopicLine{Message: &schema.TopicMessage{Offset: 7, Text: "<secret>"}}); err != nil {
		return err
	}
	return fault.New(fault.Unavailable, "test", "the leader has gone")
}
func (f adminFunc) ReplayTopic(context.Context, schema.TopicReplay) (schema.TopicStatus, error) {
	return schema.TopicStatus{}, nil
}
func (f adminFunc) DeleteTopic(_ context.Context, _ schema.TopicDelete,
	report func(schema.TopicProgress) error) error {
	return report(schema.TopicProgress{Done: 1, Ended: true})
}
func (f adminFunc) RedriveTopic(_ context.Context, _ schema.TopicRedrive,
	report func(schema.TopicProgress) error) error {
	return report(schema.TopicProgress{Done: 1, To: map[string]uint64{"orders": 1}, Ended: true})
}
func (f adminFunc) ListActors(context.Context, int) ([]schema.ActorsStatus, error) { return nil, nil }
func (f adminFunc) MoveActor(context.Context, schema.ActorMove) error              { return nil }
func (f adminFunc) RebalanceActors(context.Context, string) (schema.ActorsMoved, error) {
	return schema.ActorsMoved{}, nil
}
func (f adminFunc) HeldLocks(context.Context) ([]schema.LockStatus, error) { return nil, nil }

func (f adminFunc) ReleaseLock(context.Context, schema.LockReleaseRequest) (schema.LockStatus, error) {
	return schema.LockStatus{Resource: "r"}, nil
}

func (f adminFunc) ListWorkflows(_ context.Context, r schema.WorkflowSelection) (schema.WorkflowPage, error) {
	return schema.WorkflowPage{Note: fmt.Sprint(r.App, r.Statuses, r.Before.Unix(), r.Limit)}, nil
}

func (f adminFunc) ShowWorkflow(_ context.Context, r schema.WorkflowRef, payloads bool) (schema.WorkflowDetail, error) {
	return schema.WorkflowDetail{Execution: fmt.Sprint(r, payloads)}, nil
}

func (f adminFunc) WorkflowHistory(_ context.Context, r schema.WorkflowRef, first, limit int,
	payloads bool) (schema.WorkflowHistory, error) {
	return schema.WorkflowHistory{Events: []schema.WorkflowEvent{{Detail: fmt.Sprint(r, first, limit, payloads)}}}, nil
}

func (f adminFunc) StartWorkflow(_ context.Context, r schema.WorkflowStart) (schema.WorkflowChanged, error) {
	return schema.WorkflowChanged{Note: "start " + r.Name}, nil
}

func (f adminFunc) ChangeWorkflow(_ context.Context, r schema.WorkflowChange) (schema.WorkflowChanged, error) {
	return schema.WorkflowChanged{Note: r.Action + " " + r.ID}, nil
}

func (f adminFunc) PurgeWorkflows(_ context.Context, r schema.WorkflowPurge) (schema.WorkflowsPurged, error) {
	return schema.WorkflowsPurged{Removed: len(r.Statuses)}, nil
}

func (f adminFunc) RerunWorkflow(_ context.Context, r schema.WorkflowRerun) (schema.WorkflowChanged, error) {
	return schema.WorkflowChanged{Note: fmt.Sprint("rerun ", r.Event)}, nil
}

func (f adminFunc) Leave(context.Context) (schema.RemoveResult, error) {
	_, err := f()
	return schema.RemoveResult{}, err
}

func (f adminFunc) Checkup(context.Context) (schema.Checkup, error) {
	_, err := f()
	return schema.Checkup{}, err
}

func (f adminFunc) ClusterStatus(context.Context) (schema.ClusterStatus, error) {
	_, err := f()
	return schema.ClusterStatus{}, err
}

func (f adminFunc) Forward(context.Context, string, admin.Request) ([]byte, error) {
	_, err := f()
	return nil, err
}

func (f adminFunc) Voters(context.Context) (schema.VotersStatus, error) {
	_, err := f()
	return schema.VotersStatus{Voters: 3}, err
}

func (f adminFunc) SetVoters(_ context.Context, number int) (schema.VotersStatus, error) {
	_, err := f()
	return schema.VotersStatus{Voters: number}, err
}

func adminStatusSample() schema.NodeStatus {
	return schema.NodeStatus{
		Security: schema.SecurityStatus{Nodes: "token", Tokens: []string{"3f9a11c2"},
			CertificateEnds: new(time.Unix(1700086400, 0).UTC())},
		Node: schema.NodeIdentity{ID: "n1", ServerID: "n1-4f", Cluster: "default", ClusterID: "c1", Role: "server",
			Version: "v1", Started: time.Unix(1700000000, 0).UTC(),
			UptimeMS: 1500, DataDir: "/data", LogStore: "boltdb", Partitions: 1,
			Apps: []schema.AppStatus{{ID: "orders", API: []string{"127.0.0.1:3500"}}}, Metrics: "127.0.0.1:9090",
			Gossip: "127.0.0.1:7946", Peer: "127.0.0.1:7947"},
		Issues: []schema.Issue{{About: "group 0", Reason: "no leader"}},
		Groups: []schema.GroupStatus{{State: "follower", Term: 2, CommitIndex: 7, AppliedIndex: 6, LastLogIndex: 8,
			SnapshotIndex: 3, Keys: 4, DiskBytes: 5, LogBytes: 6, Reads: true, Reason: "no leader",
			Servers: []schema.ServerStatus{{Node: "n1", ServerID: "n1-4f", Voter: true, Lag: new(uint64(3)),
				Reason: "is a voter"}, {Node: "n2", ServerID: "n2-5a"}}}},
		Stores: []schema.StoreStatus{{Name: "statestore", Type: "state.raft", Version: "v1", Ready: true,
			Capabilities: []string{"ETAG"}, KeyPrefix: "appid", DefaultConsistency: "eventual"}},
		Disk: &schema.DiskStatus{FreeBytes: 9, ReserveBytes: 5, Low: true},
	}
}

// adminGet sends a GET to the admin API.
func adminGet(t *testing.T, a admin.Node, path string) (status int, body []byte) {
	t.Helper()
	w := httptest.NewRecorder()
	admin.NewHandler(a, slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("%s: content type %q", path, got)
	}
	return w.Code, w.Body.Bytes()
}

func TestAdminStatus_IsComplete(t *testing.T) {
	want := adminStatusSample()
	status, body := adminGet(t, adminFunc(func() (schema.NodeStatus, error) { return want, nil }), admin.StatusPath)
	var got schema.NodeStatus
	if err := json.Unmarshal(body, &got); err != nil || status != http.StatusOK {
		t.Fatalf("%d %v: %s", status, err, body)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestAdmin_FieldNamesAreStable checks the JSON names, because programs read them.
func TestAdmin_FieldNamesAreStable(t *testing.T) {
	_, body := adminGet(t, adminFunc(func() (schema.NodeStatus, error) {
		return adminStatusSample(), nil
	}), admin.StatusPath)
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "status.json")
	if *update {
		if err := os.WriteFile(golden, append(got, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
		t.Error(diff)
	}
}

func TestAdminStores_EmptyListWithoutStores(t *testing.T) {
	_, body := adminGet(t, adminFunc(func() (schema.NodeStatus, error) {
		return schema.NodeStatus{}, nil
	}), admin.StoresPath)
	if string(body) != "[]" {
		t.Errorf("body %s", body)
	}
	_, body = adminGet(t, adminFunc(func() (schema.NodeStatus, error) {
		return adminStatusSample(), nil
	}), admin.StoresPath)
	var got []schema.StoreStatus
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(adminStatusSample().Stores, got); diff != "" {
		t.Error(diff)
	}
}

func TestAdminErrors_KeepCodeAndHint(t *testing.T) {
	for code, want := range map[fault.Code]int{
		fault.Invalid: 400, fault.TooLarge: 400, fault.Denied: 403, fault.NotFound: 404, fault.Conflict: 409,
		fault.Unimplemented: 501,
		fault.Unavailable:   503, fault.NotLeader: 503, fault.Timeout: 504, fault.Indeterminate: 504,
		fault.Internal: 500, fault.Corrupt: 500,
	} {
		failure := &fault.Error{Code: code, Op: "node.Status", Msg: "m", Hint: "h"}
		status, body := adminGet(t, adminFunc(func() (schema.NodeStatus, error) {
			return schema.NodeStatus{}, failure
		}), admin.StatusPath)
		err := fault.Unmarshal(body)
		if status != want || !fault.Is(err, code) || !strings.Contains(err.Error(), "(h)") {
			t.Errorf("%s: status %d, error %v", code, status, err)
		}
	}
}

func TestAdmin_RefusesUnknownInput(t *testing.T) {
	status, body := adminGet(t, adminFunc(nil), "/v1/nowhere")
	if err := fault.Unmarshal(body); status != http.StatusNotFound || !fault.Is(err, fault.NotFound) ||
		!strings.Contains(err.Error(), "/v1/nowhere") {
		t.Errorf("status %d, %s", status, body)
	}
}

// listenAdmin opens the admin socket and checks that FindSocket returns it.
func listenAdmin(t *testing.T, dataDir, runtimeDir string) string {
	t.Helper()
	l, err := admin.Listen(dataDir, runtimeDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, "here")
			_ = c.Close()
		}
	}()
	path, err := admin.FindSocket(dataDir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(c); string(text) != "here" {
		t.Errorf("another socket answers: %q, %v", text, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the socket: %v, %v", info.Mode(), err)
	}
	return path
}

// shortDir returns a temporary directory whose path is short enough for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "q")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestAdminSocket_InDataDirectory(t *testing.T) {
	dir := shortDir(t)
	if path := listenAdmin(t, dir, ""); filepath.Dir(path) != dir {
		t.Errorf("socket at %s", path)
	}
}

func TestAdminSocket_ReplacesStaleSocket(t *testing.T) {
	dir := shortDir(t)
	l, err := admin.Listen(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the socket file stays, as after a kill
	_ = l.Close()
	listenAdmin(t, dir, "")
}

func TestAdminSocket_LongPathUsesRuntimeDirectory(t *testing.T) {
	base := shortDir(t)
	long := filepath.Join(base, strings.Repeat("d", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	runtime := filepath.Join(base, "run")
	if path := listenAdmin(t, long, runtime); filepath.Dir(path) != runtime {
		t.Errorf("socket at %s", path)
	}
}

func TestAdminSocket_RefusesUnsafeDirectory(t *testing.T) {
	base := shortDir(t)
	long := filepath.Join(base, strings.Repeat("d", 100))
	open := filepath.Join(base, "open")
	for _, dir := range []string{long, open} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(shortDir(t), link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		runtime string
		code    fault.Code
	}{
		"open to others":  {open, fault.Denied},
		"a symbolic link": {link, fault.Denied},
		"none":            {"", fault.Invalid},
		"too long itself": {filepath.Join(long, "run"), fault.Invalid},
	} {
		l, err := admin.Listen(long, c.runtime)
		if !fault.Is(err, c.code) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			_ = l.Close()
		}
	}
}

func TestAdminSocket_RemovesNoteOfEarlierPath(t *testing.T) {
	dir := shortDir(t)
	if err := os.WriteFile(filepath.Join(dir, "admin.path"), []byte("/elsewhere.sock\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if path := listenAdmin(t, dir, ""); filepath.Dir(path) != dir {
		t.Errorf("socket at %s", path)
	}
}

func (f adminFunc) ConsoleLink(context.Context) (schema.ConsoleLink, error) {
	_, err := f()
	return schema.ConsoleLink{URL: "http://127.0.0.1:9091/login?token=t"}, err
}

func (f adminFunc) DebugBundle(_ context.Context, w io.Writer, d time.Duration) error {
	_, err := f()
	_, _ = io.WriteString(w, "bundle of "+d.String())
	return err
}

func (f adminFunc) NodeView(context.Context) (schema.NodeView, error) {
	s, err := f()
	return schema.NodeView{Status: s}, err
}
