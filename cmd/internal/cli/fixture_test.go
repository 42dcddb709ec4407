package cli_test

import (
	stdcmp "cmp"
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/api"
	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/api/http/httpserver"
	"github.com/quorate/quorate/cmd/internal/cli"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/component/configuration/records"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lifecycle"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/node"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memoryNode is a node with one state store in memory. It uses the production API and admin socket.
type memoryNode struct {
	addresses node.Addresses
	closers   lifecycle.Stack
	stopped   chan error // what Wait returns, from the API or the test
	status    schema.NodeStatus
	items     *records.Store // items of the configuration store configstore
	forgotten atomic.Bool    // Remove no longer knows n5
	published atomic.Pointer[schema.TopicPublish]
	purged    atomic.Bool // a selection of workflows was purged
}

// openMemoryNode starts a memoryNode, as Main.Open does for a node.
func openMemoryNode(ctx context.Context, c node.Config, log *slog.Logger) (_ *memoryNode, err error) {
	n := &memoryNode{stopped: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close(context.Background()))
		}
	}()
	if err := os.MkdirAll(c.Data.Dir, 0o700); err != nil {
		return nil, err
	}
	n.items = records.New(records.Options{Backing: inmemory.Open(inmemory.Options{}), Logger: log})
	_ = n.closers.Push("configuration", func(context.Context) error { return n.items.Close() })
	var stores memoryStores
	for _, name := range []string{"statestore", "orders"} {
		store := inmemory.Open(inmemory.Options{})
		_ = n.closers.Push(name, func(context.Context) error { return store.Close() })
		stores = append(stores, &state.Instance{Name: name, Type: "state.in-memory", Version: "v1", Store: store,
			DefaultConsistency: state.Eventual, Features: state.FeaturesOf(store)})
	}
	face, err := n.face(c, stores, log)
	if err != nil {
		return nil, err
	}
	ls, err := listen.TCP(ctx, listen.Request{Hosts: c.API.Listen, Port: c.API.HTTP.Number, Flag: "--http-port"})
	if err != nil {
		return nil, err
	}
	n.addresses = node.Addresses{API: []string{ls[0].Addr().String()}, Metrics: "127.0.0.1:9191", DataDir: c.Data.Dir}
	if err := n.serve(ctx, ls[0], face, log); err != nil {
		return nil, err
	}
	admin, err := adminapi.Listen(c.Data.Dir, c.Data.RuntimeDir)
	if err != nil {
		return nil, err
	}
	n.addresses.Admin = admin.Addr().String()
	n.status = statusOf(c)
	return n, n.serve(ctx, admin, adminapi.NewHandler(n, log), log)
}

func (n *memoryNode) face(c node.Config, stores memoryStores, log *slog.Logger) (http.Handler, error) {
	app := api.App{ID: c.App.ID, Namespace: c.Namespace}
	tokens := make([]string, len(c.Security.APITokens))
	for i, t := range c.Security.APITokens {
		tokens[i] = string(t)
	}
	accepted, err := api.NewTokens(tokens)
	if err != nil {
		return nil, err
	}
	return apihttp.New(apihttp.Config{
		App: app, State: api.NewState(app, stores, api.Limits{}), Health: api.NewHealth(app, healthy{}),
		Metadata: api.NewMetadata(app, healthy{}, api.Limits{}),
		Shutdown: func(bool) { n.stopped <- nil }, Tokens: accepted, Logger: log, Registerer: prometheus.NewRegistry(),
	})
}

func (n *memoryNode) serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	s := httpserver.New(httpserver.Config{Listener: l, Handler: h, Logger: log})
	if err := s.Open(ctx); err != nil {
		return err
	}
	return n.closers.Push("server", s.Close)
}

func (n *memoryNode) Addresses() node.Addresses                         { return n.addresses }
func (n *memoryNode) Close(ctx context.Context) error                   { return n.closers.Close(ctx) }
func (n *memoryNode) Status(context.Context) (schema.NodeStatus, error) { return n.status, nil }
func (n *memoryNode) Members(context.Context) ([]schema.MemberStatus, error) {
	return []schema.MemberStatus{
		{Node: "n1", ServerID: "n1.4f", Role: "server", State: "alive", Since: time.Unix(1700000000, 0).UTC(),
			Peer: "10.0.0.1:7947", Gossip: "10.0.0.1:7946", ClusterID: "c1", Version: "v1", Leads: 1, Self: true},
		{Node: "n2", ServerID: "n2.5a", Role: "server", State: "failed", Since: time.Unix(1700000100, 0).UTC(),
			Peer: "10.0.0.2:7947", Gossip: "10.0.0.2:7946", ClusterID: "c1", Version: "v1"},
	}, nil
}

func (n *memoryNode) ListJobs(_ context.Context, r schema.JobSelection) ([]schema.JobStatus, error) {
	if r.App == "full" && !r.Brief {
		return nil, fault.New(fault.TooLarge, "test", "the jobs need too many bytes")
	}
	all := []schema.JobStatus{
		{App: "shop", Name: "nightly", Schedule: "@daily", Next: time.Unix(1700000000, 0).UTC(), Ticks: 3},
		{App: "shop", Name: "once", Next: time.Unix(1700000100, 0).UTC(), Attempts: 2, Error: "answered 500"},
	}
	return slices.DeleteFunc(all, func(j schema.JobStatus) bool {
		return r.App != "" && j.App != r.App || r.Exact && j.Name != r.Name || !strings.HasPrefix(j.Name, r.Name)
	}), nil
}

func (n *memoryNode) ChangeJob(ctx context.Context, r schema.JobChange) (schema.JobStatus, error) {
	list, err := n.ListJobs(ctx, schema.JobSelection{App: r.App, Name: r.Name, Exact: true})
	if err != nil || len(list) == 0 {
		return schema.JobStatus{}, fault.New(fault.NotFound, "test", "application "+r.App+" has no job "+r.Name)
	}
	return list[0], nil
}

func (n *memoryNode) ListActors(_ context.Context, limit int) ([]schema.ActorsStatus, error) {
	return []schema.ActorsStatus{{App: "bank", Store: "statestore", Types: []string{"Counter"},
		Hosts: []schema.ActorHostStatus{{Node: "a", Types: []string{"Counter"}, Actors: 2},
			{Node: "b", Types: []string{"Counter"}, Draining: true}},
		Actors: []schema.ActorStatus{{Type: "Counter", ID: "alice", Node: "a", Epoch: 17}}, More: limit == 1,
		Reminders: []schema.ActorReminder{{Type: "Counter", ID: "alice", JobStatus: schema.JobStatus{Name: "interest",
			Schedule: "R12/P1M", Next: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC), Attempts: 2,
			Error: "status 500"}}}}}, nil
}

func (n *memoryNode) MoveActor(_ context.Context, r schema.ActorMove) error {
	if r.Node != "b" {
		return fault.New(fault.NotFound, "test", "node "+r.Node+" does not host the type")
	}
	return nil
}

func (n *memoryNode) RebalanceActors(_ context.Context, kind string) (schema.ActorsMoved, error) {
	moved := schema.ActorsMoved{Moved: 3}
	if kind == "Busy" {
		moved.Busy = 2
	}
	return moved, nil
}

func (n *memoryNode) ListWorkflows(_ context.Context, r schema.WorkflowSelection) (schema.WorkflowPage, error) {
	if r.Name == "none" {
		return schema.WorkflowPage{Note: "no instance is of a workflow with the name none"}, nil
	}
	s := schema.WorkflowStatus{WorkflowRef: schema.WorkflowRef{App: "shop", ID: "order-7"}, Name: "order",
		Status: "RUNNING", Created: time.Unix(1700000000, 0).UTC(), Updated: time.Unix(1700000002, 0).UTC()}
	page := schema.WorkflowPage{Instances: []schema.WorkflowStatus{s}}
	if r.Limit == 1 {
		page.Next = "TOKEN"
	}
	return page, nil
}

func (n *memoryNode) ShowWorkflow(ctx context.Context, r schema.WorkflowRef, payloads bool) (d schema.WorkflowDetail,
	err error) {
	page, err := n.ListWorkflows(ctx, schema.WorkflowSelection{})
	d.WorkflowStatus = page.Instances[0]
	if r.ID != d.ID {
		return d, fault.New(fault.NotFound, "test", "application shop has no workflow instance "+r.ID)
	}
	begin := d.Created.Add(1500 * time.Millisecond)
	d.Turns, d.Steps = 2, []schema.WorkflowStep{
		{Kind: schema.StepActivity, Name: "pay", Begin: begin, End: begin.Add(time.Second), Attempt: 1,
			Outcome: schema.StepFailed, Failure: &schema.WorkflowFailure{Type: "E", Message: "no"}},
		{Kind: schema.StepWait, EventID: 1, Name: "go", Begin: begin, Due: begin.Add(time.Hour)},
	}
	if payloads {
		d.Input = new("secret")
	}
	return d, err
}

func (n *memoryNode) WorkflowHistory(_ context.Context, _ schema.WorkflowRef, first, limit int,
	payloads bool) (h schema.WorkflowHistory, err error) {
	for i := first; i < 3 && len(h.Events) < limit; i++ {
		h.Events = append(h.Events, schema.WorkflowEvent{Position: i, ID: int32(i),
			Time: time.Unix(1700000000, 0).UTC(), Type: "TaskScheduled", Name: "pay"})
		if payloads {
			h.Events[len(h.Events)-1].Payload = new("secret")
		}
	}
	h.More = first+len(h.Events) < 3
	return h, nil
}

func (n *memoryNode) StartWorkflow(_ context.Context, r schema.WorkflowStart) (schema.WorkflowChanged, error) {
	if r.Input != nil && *r.Input != "7" {
		return schema.WorkflowChanged{}, fault.New(fault.Invalid, "test", "the data is not JSON")
	}
	return schema.WorkflowChanged{WorkflowRef: r.WorkflowRef, Status: "PENDING", Note: "no worker is connected"}, nil
}

func (n *memoryNode) ChangeWorkflow(_ context.Context, r schema.WorkflowChange) (schema.WorkflowChanged, error) {
	if r.Event == "aprove" && !r.Early {
		return schema.WorkflowChanged{}, fault.New(fault.Conflict, "test", "it does not wait for the event aprove")
	}
	status := map[string]string{"pause": "SUSPENDED", "terminate": "TERMINATED"}[r.Action]
	return schema.WorkflowChanged{WorkflowRef: r.WorkflowRef, Status: stdcmp.Or(status, "RUNNING")}, nil
}

// PurgeWorkflows removes two instances of the application shop with the first request, and one with the second.
func (n *memoryNode) PurgeWorkflows(_ context.Context, r schema.WorkflowPurge) (schema.WorkflowsPurged, error) {
	if r.ID == "" && !n.purged.Swap(true) {
		return schema.WorkflowsPurged{Removed: 2, More: true}, nil
	}
	return schema.WorkflowsPurged{Removed: 1}, nil
}

func (n *memoryNode) RerunWorkflow(_ context.Context, r schema.WorkflowRerun) (schema.WorkflowChanged, error) {
	r.ID = r.NewID
	return schema.WorkflowChanged{WorkflowRef: r.WorkflowRef, Status: "RUNNING"}, nil
}

func (n *memoryNode) HeldLocks(context.Context) ([]schema.LockStatus, error) {
	return []schema.LockStatus{
		{Store: "lockstore", Prefix: "shop", Resource: "printer", Owner: "worker-1", Revision: "1207", ExpiryMS: 60000,
			StateStore: "statestore"},
		{Store: "lockstore", Resource: "door", Owner: "x", Revision: "7", ExpiryMS: 1500},
	}, nil
}

func (n *memoryNode) ReleaseLock(ctx context.Context, r schema.LockReleaseRequest) (schema.LockStatus, error) {
	list, err := n.HeldLocks(ctx)
	if r.Resource != list[0].Resource || r.Prefix != nil && *r.Prefix != "shop" || r.Revision == "9" {
		err = fault.New(fault.NotFound, "test", "lock store "+r.Store+" has no lock on "+r.Resource)
	}
	return list[0], err
}

func (n *memoryNode) Apps(context.Context) ([]schema.AppInstance, error) {
	return []schema.AppInstance{
		{App: "orders", Node: "n1", Protocol: "http", State: "healthy", Load: 2, Calls: 3, Self: true},
		{App: "orders", Node: "n2", Protocol: "http", State: "demoted"},
		{App: "orders", Namespace: "prod", Node: "n2", Protocol: "grpc", State: "unhealthy"},
		{App: "report", Node: "n2", State: "uncalled"},
	}, nil
}

func (n *memoryNode) ClusterStatus(ctx context.Context) (schema.ClusterStatus, error) {
	members, err := n.Members(ctx)
	mine := n.status
	mine.Disk = &schema.DiskStatus{FreeBytes: 3 << 30, ReserveBytes: 1 << 30}
	mine.Notes = []schema.Issue{{About: "settings", Reason: "--voters differs: n1 has 3, n3 has 5"}}
	return schema.NewClusterStatus("n1", []schema.NodeReport{{Member: members[0], Status: &mine},
		{Member: members[1], Error: "n2 does not answer"}}), err
}

// Forward knows n2, which runs this node.
func (n *memoryNode) Forward(ctx context.Context, node string, r adminapi.Request) ([]byte, error) {
	if node != "n2" {
		return nil, &fault.Error{Code: fault.NotFound, Op: "test", Msg: "no node " + node + " is known in this cluster"}
	}
	return adminapi.Serve(ctx, adminapi.NewRemoteHandler(n, slog.New(slog.DiscardHandler)), "n1", r)
}

func (n *memoryNode) Voters(context.Context) (schema.VotersStatus, error) {
	return schema.VotersStatus{Voters: 3, Groups: []schema.VotersGroup{{Voters: []string{"n1", "n2", "n3"},
		NonVoters: []string{"n4"}, States: map[string]string{"n2": "failed"}}}}, nil
}

func (n *memoryNode) SetVoters(ctx context.Context, number int) (schema.VotersStatus, error) {
	s, err := n.Voters(ctx)
	if number == 4 {
		return s, &fault.Error{Code: fault.Invalid, Op: "test", Msg: "4 voters survive no more failures than 3"}
	}
	s.Before, s.Voters = s.Voters, number
	return s, err
}

// TransferLeader fails for all groups except group 0. For the target n3 the result does not tell whether n3 took
// over.
func (n *memoryNode) TransferLeader(_ context.Context, group uint64, to string) (schema.TransferResult, error) {
	if group != 0 {
		return schema.TransferResult{}, &fault.Error{Code: fault.NotLeader, Op: "test",
			Msg: "group 1 is led by n2, not by this node", Hint: "run the command on n2"}
	}
	if to == "n3" {
		return schema.TransferResult{From: "n1"}, nil
	}
	return schema.TransferResult{From: "n1", Leader: stdcmp.Or(to, "n2")}, nil
}

// CompareReplicas implements admin.Node.
func (n *memoryNode) CompareReplicas(context.Context, uint64) (schema.Comparison, error) {
	return schema.Comparison{}, nil
}

// Remove knows three servers. n2 is removed immediately, and n3 is never removed. n5 is removed after the first
// request, and is then known only by its server id.
func (n *memoryNode) Remove(_ context.Context, target string) (schema.RemoveResult, error) {
	switch target {
	case "n2":
		return schema.RemoveResult{Node: "n2", ServerID: "n2.5a", Done: true,
			Groups: []schema.RemoveGroup{{Done: true}}}, nil
	case "n3", "n3.6b":
		return schema.RemoveResult{Node: "n3", ServerID: "n3.6b",
			Groups: []schema.RemoveGroup{{Done: true}, {Group: 1, Reason: "n4 takes its place"}}}, nil
	case "n5.7c":
		return schema.RemoveResult{Node: "n5", ServerID: "n5.7c", Done: true,
			Groups: []schema.RemoveGroup{{Done: true}}}, nil
	case "n5":
		if !n.forgotten.Swap(true) {
			return schema.RemoveResult{Node: "n5", ServerID: "n5.7c",
				Groups: []schema.RemoveGroup{{Reason: "it is about to be removed"}}}, nil
		}
		fallthrough
	default:
		return schema.RemoveResult{}, &fault.Error{Code: fault.NotFound, Op: "test",
			Msg: "no server " + target + " is known", Hint: "the servers are n1.4f, n2.5a"}
	}
}

func (n *memoryNode) Leave(context.Context) (schema.RemoveResult, error) {
	return schema.RemoveResult{Node: "n1", ServerID: "n1.4f", Done: true}, nil
}

func (n *memoryNode) Checkup(context.Context) (schema.Checkup, error) {
	return schema.Checkup{Node: "n1", Checks: []schema.CheckResult{
		{Check: "clock", About: "n2", Level: schema.CheckFail, Text: "9s ahead of this node",
			Fix: "synchronize the clocks of both machines with NTP"},
		{Check: "disk sync", About: "/data", Level: schema.CheckOK, Text: "1ms"},
	}}, nil
}

func (n *memoryNode) Wait(ctx context.Context) error {
	select {
	case err := <-n.stopped:
		return err
	case <-ctx.Done():
		return nil
	}
}

func statusOf(c node.Config) schema.NodeStatus {
	return schema.NodeStatus{
		Node: schema.NodeIdentity{ID: "n1", ServerID: "n1-4f", Cluster: c.Cluster.Name, Role: "server", Version: "v1",
			UptimeMS: 93_500, DataDir: "/data", LogStore: "boltdb",
			Partitions: 1, Apps: []schema.AppStatus{{ID: c.App.ID, API: []string{"127.0.0.1:3500"}}},
			Metrics:   "127.0.0.1:9090",
			ClusterID: "c1", Gossip: "10.0.0.1:7946", Peer: "10.0.0.1:7947"},
		Issues: []schema.Issue{{About: "group 0", Reason: "the disk is almost full: free some space"},
			{About: "store statestore", Reason: "group 0: the disk is almost full: free some space"}},
		Groups: []schema.GroupStatus{{State: "leader", Leader: "n1", Term: 3, CommitIndex: 1234, AppliedIndex: 1233,
			LastLogIndex: 1235, SnapshotIndex: 1000, Keys: 42,
			DiskBytes: 3 << 20, LogBytes: 1536, ReadOnly: true, Reads: true, Reason: "the disk is almost full",
			Servers: []schema.ServerStatus{{Node: "n1", ServerID: "n1-4f", Voter: true, Lag: new(uint64(0)),
				Reason: "n1 is a voter and leads"},
				{Node: "n2", ServerID: "n2-5a", Lag: new(uint64(1204)),
					Reason: "n2 is not a voter: it is 1,204 entries behind"}, {Node: "n3", ServerID: "n3-6b",
					Voter: true, State: "failed"}}},
			{ID: 1, State: "follower", Leader: "n2", Term: 4, Reads: true, Writes: false,
				Reason: "its leader hands over"}},
		Stores: []schema.StoreStatus{{Name: "statestore", Type: "state.raft", Ready: true,
			Capabilities: []string{"ETAG", "TTL"}, KeyPrefix: "appid", DefaultConsistency: "eventual",
			ActorStore: true},
			{Name: "other", Type: "state.raft", Reason: "starting", KeyPrefix: "none", DefaultConsistency: "strong"}},
	}
}

// healthy is a node that is ready and has no details.
type healthy struct{}

func (healthy) Starting() []api.Reason                { return nil }
func (healthy) OutboundStarting() []api.Reason        { return nil }
func (healthy) Readiness(context.Context) []api.Check { return nil }
func (healthy) Unplaced() []api.Reason                { return nil }
func (healthy) Describe() api.Description {
	return api.Description{Components: []api.ComponentInfo{{Name: "statestore", Type: "state.in-memory"},
		{Name: "vault", Type: "secretstores.local.file"}, {Name: "orders", Type: "state.raft"}}}
}

// memoryStores is a catalogue.
type memoryStores []*state.Instance

func (s memoryStores) StateStore(name string) (*state.Instance, bool) {
	for _, inst := range s {
		if inst.Name == name {
			return inst, true
		}
	}
	return nil, false
}

func (s memoryStores) StateStores() []*state.Instance      { return s }
func (s memoryStores) ActorStore() (*state.Instance, bool) { return nil, false }
func (s memoryStores) Loaded() bool                        { return true }

// console is a user at a terminal, with an environment and a home directory.
type console struct {
	t     *testing.T
	home  string
	env   []string
	stdin string
	open  func(ctx context.Context, c node.Config, log *slog.Logger) (cli.Node, error)
	check func(ctx context.Context, c node.Config) ([]string, error)

	signals chan os.Signal
	exited  chan int
}

func newConsole(t *testing.T) *console {
	t.Helper()
	home, err := os.MkdirTemp("", "q") // paths of t.TempDir are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	return &console{t: t, home: home, signals: make(chan os.Signal, 2), exited: make(chan int, 1),
		open: func(ctx context.Context, c node.Config, log *slog.Logger) (cli.Node, error) {
			return openMemoryNode(ctx, c, log)
		},
		check: func(context.Context, node.Config) ([]string, error) { return nil, nil },
	}
}

// result is the outcome of a command.
type result struct {
	code           int
	stdout, stderr string
}

// run runs one command to its end.
func (c *console) run(args ...string) result {
	var stdout, stderr testutil.Output
	code := c.main(&stdout, &stderr, args).Run(c.t.Context())
	return result{code, stdout.String(), stderr.String()}
}

func (c *console) main(stdout, stderr io.Writer, args []string) *cli.Main {
	return &cli.Main{
		Shell: &command.Shell{
			Env:   append([]string{"HOME=" + c.home, "TMPDIR=" + c.home}, c.env...),
			Stdin: strings.NewReader(c.stdin), Stdout: stdout, Stderr: stderr,
			Version: command.Version{Version: "v1.2.3", Commit: "abc"},
			Signals: func() (<-chan os.Signal, func()) { return c.signals, func() {} },
		},
		Args: args,
		Open: c.open, Check: c.check,
		Exit: func(code int) { c.exited <- code },
	}
}

// started is a run command in the background.
type started struct {
	stdout, stderr *testutil.Output
	code           chan int
}

// start runs a node and waits until its addresses are known.
func (c *console) start(args ...string) *started {
	c.t.Helper()
	s := &started{&testutil.Output{}, &testutil.Output{}, make(chan int, 1)}
	m := c.main(s.stdout, s.stderr, append([]string{"run", "--http-port", "0"}, args...))
	go func() { s.code <- m.Run(c.t.Context()) }()
	eventually(c.t, func() bool { return strings.Contains(s.stderr.String(), "the node is running") })
	return s
}

// stop sends a signal to a node and returns its exit code.
func (c *console) stop(s *started) int {
	c.t.Helper()
	c.signals <- syscall.SIGTERM
	return s.wait(c.t)
}

func (s *started) wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-s.code:
		return code
	case <-time.After(2 * time.Minute):
		t.Fatalf("the command does not end; its output:\n%s", s.stderr.String())
		return 0
	}
}

// api returns the address of the API of a started node.
func (s *started) api() string {
	_, rest, _ := strings.Cut(s.stderr.String(), " api=")
	address, _, _ := strings.Cut(rest, " ")
	return address
}

// eventually waits for cond, with a deadline.
func eventually(t *testing.T, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Minute); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("the condition was not met in time")
		}
	}
}

// post sends a body and returns the status of the answer.
func post(t *testing.T, address, body string) int {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post(address, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// golden compares text with a file of testdata, or rewrites the file with -update.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.FromSlash(name)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s differs (go test -update rewrites it):\n%s", name, diff)
	}
}

// ConsoleLink implements admin.Console.
func (n *memoryNode) ConsoleLink(context.Context) (schema.ConsoleLink, error) {
	return schema.ConsoleLink{URL: "http://127.0.0.1:9091/login?token=TOKEN",
		Expires: time.Unix(1700000000, 0).UTC()}, nil
}

// DebugBundle implements admin.Debugger.
func (n *memoryNode) DebugBundle(ctx context.Context, w io.Writer, d time.Duration) error {
	if n.finds("hangs") {
		<-ctx.Done()
		return ctx.Err()
	}
	_, err := io.WriteString(w, "bundle of "+d.String())
	return err
}

// NodeView implements admin.Viewer.
func (n *memoryNode) NodeView(context.Context) (schema.NodeView, error) {
	return schema.NodeView{}, nil
}
