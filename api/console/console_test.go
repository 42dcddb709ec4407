package console_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/api/console"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// cluster is a console.Cluster with a fixed answer.
type cluster struct {
	mu       sync.Mutex
	members  []console.Member
	transfer string // arguments of TransferLeader

	compared   string // argument of CompareReplicas
	comparison schema.Comparison
	failure    error
}

func (c *cluster) Members(context.Context) []console.Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members
}

func (c *cluster) TransferLeader(_ context.Context, leader string, _ uint64, to string) (schema.TransferResult, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.transfer = leader + " to " + to
	return schema.TransferResult{Leader: to}, nil
}

func (c *cluster) CompareReplicas(_ context.Context, leader string, group uint64) (schema.Comparison, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compared = leader
	return c.comparison, c.failure
}

func (c *cluster) set(members []console.Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = members
}

const store = "statestore"

// data is a console.Data with one store.
type data struct{ state *api.State }

func (d data) Stores(string) []string  { return []string{store} }
func (d data) State(string) *api.State { return d.state }

// blocks is a console.Blocks with one lock and one item.
type blocks struct{ released string }

func (*blocks) HeldLocks(context.Context) ([]schema.LockStatus, error) {
	left := int64(42_000)
	return []schema.LockStatus{{Store: "lockstore", Prefix: "shop", Resource: "door", Owner: "<b>me", Revision: "7",
		ExpiryMS: 60_000, LeftMS: &left}}, nil
}

func (b *blocks) ReleaseLock(_ context.Context, r schema.LockReleaseRequest) (schema.LockStatus, error) {
	b.released = r.Store + " " + *r.Prefix + " " + r.Resource + " " + r.Revision
	return schema.LockStatus{}, nil
}

func (*blocks) ConfigurationStores() []string { return []string{"configstore"} }

func (*blocks) ConfigurationItems(context.Context, string, []string) ([]configurations.Change, error) {
	return []configurations.Change{{Key: "level", Value: "<b>debug", Version: "4"}}, nil
}

// work is a console.Work with two jobs and two actors.
type work struct {
	selected schema.JobSelection
	err      error // of ListJobs
}

func (w *work) ListJobs(_ context.Context, r schema.JobSelection) ([]schema.JobStatus, error) {
	w.selected = r
	if w.err != nil {
		return nil, w.err
	}
	past, next := time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	return []schema.JobStatus{
		{App: "shop", Name: "<b>nightly", Schedule: "@every 1h", Due: past, Next: next, Ticks: 3, Attempts: 2,
			Error: "<b>status 500", Job: []byte(`{"data":"secret-of-job"}`)},
		{App: "shop", Name: "later", Due: next, Next: next},
	}, nil
}

func (*work) ListActors(context.Context, int) ([]schema.ActorsStatus, error) {
	return []schema.ActorsStatus{{App: "shop", Store: store, Types: []string{"Cart"},
		Hosts: []schema.ActorHostStatus{{Node: "a", Types: []string{"Cart"}, Actors: 1}},
		Actors: []schema.ActorStatus{{Type: "Cart", ID: "<b>1", Node: "a", Epoch: 77},
			{Type: "Cart", ID: "2", Epoch: 78}},
		Reminders: []schema.ActorReminder{{Type: "Cart", ID: "<b>1", JobStatus: schema.JobStatus{Name: "<b>wake",
			Schedule: "R5/PT10S", Due: time.Now().Add(time.Hour), Next: time.Now().Add(time.Hour), Ticks: 4}}},
	}}, nil
}

// flows is a console.Workflows with one instance.
type flows struct{ selected schema.WorkflowSelection }

func (w *flows) ListWorkflows(_ context.Context, r schema.WorkflowSelection) (schema.WorkflowPage, error) {
	w.selected = r
	return schema.WorkflowPage{Instances: []schema.WorkflowStatus{{WorkflowRef: schema.WorkflowRef{App: "shop",
		ID: "<b>7"}, Name: "order", Status: "RUNNING", Created: time.Now().Add(-time.Minute)}}, Next: "TOKEN"}, nil
}

func (w *flows) ShowWorkflow(ctx context.Context, r schema.WorkflowRef,
	payloads bool) (d schema.WorkflowDetail, err error) {
	page, err := w.ListWorkflows(ctx, w.selected)
	if d.WorkflowStatus = page.Instances[0]; r.ID != d.ID {
		return d, fault.New(fault.NotFound, "test", "application shop has no workflow instance "+r.ID)
	}
	begin := d.Created
	d.Parent, d.Steps = "boss", []schema.WorkflowStep{
		{Kind: schema.StepActivity, Name: "<b>pay", Begin: begin, End: begin.Add(15 * time.Second), Attempt: 2,
			Outcome: schema.StepFailed, Failure: &schema.WorkflowFailure{Type: "E", Message: "<b>no"}},
		{Kind: schema.StepChild, Name: "ship", Child: "<b>child", Begin: begin.Add(30 * time.Second)},
	}
	if payloads {
		d.Input = new("secret of the instance")
	}
	return d, err
}

// topics is a console.Topics with a topic and its dead letters.
type topics struct {
	read  schema.TopicRead
	lists atomic.Int32 // calls of ListTopics
}

func (f *topics) ListTopics(_ context.Context, pubsub, topic string) ([]schema.TopicStatus, error) {
	f.lists.Add(1)
	since := time.Now().Add(-2 * time.Hour)
	list := []schema.TopicStatus{
		{PubSub: "pubsub", Topic: "<b>orders", Messages: 4, Bytes: 2048, MaxBytes: 1 << 30, RetentionMS: 86_400_000,
			Full: true, DeadTo: []string{"<b>failed"}, Groups: []schema.TopicGroupStatus{
				{Group: "<b>report", Lag: 1_000_000, Capped: true, Oldest: &since, OldestAgeMS: 7_200_000},
				{Group: "shop", Subscribers: 2, Lag: 3, Retried: 77, Delayed: 78}}},
		{PubSub: "pubsub", Topic: "<b>failed", Messages: 60, DeadOf: []string{"<b>orders"},
			Parts: []schema.TopicPart{{Messages: 60, Newest: 91}}},
	}
	if topic != "" {
		list = slices.DeleteFunc(list, func(t schema.TopicStatus) bool { return t.Topic != topic })
		if len(list) == 0 {
			return nil, fault.New(fault.NotFound, "test", "pubsub component "+pubsub+" has no topic "+topic)
		}
	}
	return list, nil
}

func (f *topics) ReadMessages(_ context.Context, r schema.TopicRead, take func(schema.TopicLine) error) error {
	f.read = r
	for i := range uint64(60) {
		m := schema.TopicMessage{Offset: 11 + i, Time: time.Now(), Key: "<b>key", Data: []byte(`{"secret":"<b>"}`),
			Metadata: map[string]string{"<b>name": "<b>"}}
		switch i {
		case 1:
			m.Data = []byte(strings.Repeat("[", 2000) + strings.Repeat("]", 2000)) // indented, it would have 8 MB
		case 2:
			m.Data, m.Text = nil, strings.Repeat("\u00e9", 2050)+"END OF TEXT"
		case 3:
			m.Data, m.Base64 = nil, append(make([]byte, 600), 0xff)
		}
		if err := take(schema.TopicLine{Message: &m}); err != nil {
			return err
		}
	}
	return take(schema.TopicLine{CaughtUp: true})
}

func newData() data {
	stores := &apitest.Stores{Ready: true, List: []*state.Instance{apitest.Instance(store,
		inmemory.Open(inmemory.Options{}))}}
	return data{api.NewState(api.App{ID: "shop"}, stores, api.Limits{})}
}

// member is a node that answers.
func member(name string, self bool) console.Member {
	group := schema.GroupStatus{State: "follower", Leader: "a", Term: 3, Reads: true, Writes: true, Keys: 7,
		Servers: []schema.ServerStatus{{Node: "a", Voter: true}, {Node: "b", Voter: true}}}
	if name == "a" {
		group.State = "leader"
	}
	return console.Member{MemberStatus: schema.MemberStatus{Node: name, State: "alive", Role: "server", Self: self},
		View: &schema.NodeView{At: time.Now(), Status: schema.NodeStatus{Ready: true,
			Node: schema.NodeIdentity{ID: name,
				Cluster: "test", Version: "v1", Apps: []schema.AppStatus{{ID: "shop", API: []string{"127.0.0.1:1"}}}},
			Groups: []schema.GroupStatus{group}},
			Apps:    []schema.AppInstance{{App: "shop", Node: "a", State: "healthy"}},
			Figures: schema.Figures{Calls: []schema.AppCalls{{From: "shop", To: "<b>stock", Count: 4, Errors: 1}}}}}
}

// fixture is a console that a browser has signed in to.
type fixture struct {
	*httptest.Server
	cluster *cluster
	blocks  blocks
	work    work
	flows   flows
	topics  topics
	calls   *api.CallLog
	console *console.Console
	client  *http.Client
	log     *bytes.Buffer
}

func open(t *testing.T, write bool) *fixture {
	t.Helper()
	return openOn(t, write, []console.Member{member("a", true), member("b", false)})
}

func openOn(t *testing.T, write bool, members []console.Member) *fixture {
	t.Helper()
	f := &fixture{cluster: &cluster{members: members}, log: &bytes.Buffer{},
		calls: api.NewCallLog(slog.New(slog.DiscardHandler))}
	var err error
	f.console, err = console.New(console.Config{Cluster: f.cluster, Data: newData(), Blocks: &f.blocks, Work: &f.work,
		Workflows: &f.flows, Topics: &f.topics, Calls: f.calls, Write: write,
		OpenAPI: apihttp.OpenAPI(), Port: "9091", Logger: slog.New(slog.NewTextHandler(f.log, nil)), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	f.Server = httptest.NewServer(f.console.Handler())
	t.Cleanup(func() { f.console.Close(); f.Close() })
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	f.client = &http.Client{Jar: jar}
	path, _ := f.console.Login()
	if status, _, _ := f.get(t, path); status != http.StatusOK {
		t.Fatalf("login: %d", status)
	}
	return f
}

func (f *fixture) get(t *testing.T, path string) (status int, body string, header http.Header) {
	t.Helper()
	r, err := f.client.Get(f.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text), r.Header
}

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

// post sends a form with the token of the session, unless the form has one.
func (f *fixture) post(t *testing.T, path string, form url.Values, header ...string) (status int, body string) {
	t.Helper()
	if !form.Has("csrf") {
		_, page, _ := f.get(t, "/")
		form.Set("csrf", csrfField.FindStringSubmatch(page)[1])
	}
	r, err := http.NewRequest(http.MethodPost, f.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := f.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

func TestConsole_PagesNeedLogin(t *testing.T) {
	f := open(t, true)
	for _, path := range []string{"/", "/nodes", "/nodes/a", "/groups/0", "/applications", "/calls", "/state",
		"/components", "/try", "/docs",
		"/nowhere"} {
		r, err := http.Get(f.URL + path) // a client without the cookie
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if r.StatusCode != http.StatusUnauthorized || strings.Contains(string(text), "shop") {
			t.Errorf("%s without a session: %d %s", path, r.StatusCode, text)
		}
	}
}

func TestConsole_LinkWorksOnce(t *testing.T) {
	f := open(t, false)
	path, expires := f.console.Login()
	if left := time.Until(expires); left > 10*time.Minute || left < 9*time.Minute {
		t.Errorf("the link expires in %v", left)
	}
	preview, err := f.client.Head(f.URL + path) //nolint:noctx // loopback
	if err != nil {
		t.Fatal(err)
	}
	if preview.Body.Close(); preview.StatusCode != http.StatusOK || len(preview.Cookies()) > 0 {
		t.Errorf("HEAD: %s with cookies %v", preview.Status, preview.Cookies())
	}
	for i, want := range []int{http.StatusOK, http.StatusForbidden} {
		if status, _, _ := f.get(t, path); status != want {
			t.Errorf("use %d of the link: %d", i+1, status)
		}
	}
	if status, _, _ := f.get(t, "/login?token="); status != http.StatusForbidden {
		t.Errorf("an empty token: %d", status)
	}
}

func TestConsole_AnswersAreProtected(t *testing.T) {
	f := open(t, false)
	_, body, h := f.get(t, "/")
	csp := h.Get("Content-Security-Policy")
	if !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Errorf("policy %q", csp)
	}
	for name, want := range map[string]string{"X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
		"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if strings.Contains(body, "<script>") || strings.Contains(body, " style=") || strings.Contains(body, "onclick") {
		t.Error("the page has inline script or style")
	}
	u, _ := url.Parse(f.URL)
	for _, c := range f.client.Jar.Cookies(u) {
		if c.Name != "quorate-console-9091" {
			t.Errorf("cookie %s", c.Name)
		}
	}
	path, _ := f.console.Login()
	w := httptest.NewRecorder()
	f.console.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1"+path, nil))
	if got := w.Header().Get("Set-Cookie"); !strings.Contains(got, "HttpOnly") || !strings.Contains(got,
		"SameSite=Strict") {
		t.Errorf("cookie %q", got)
	}
}

func TestConsole_RefusesForeignHostsAndOrigins(t *testing.T) {
	f := open(t, true)
	for host, want := range map[string]int{"127.0.0.1:9091": 401, "[::1]:9091": 401, "localhost:9091": 401,
		"evil.example": 403, "evil.example:9091": 403, "127.0.0.1.evil.example": 403} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		f.console.Handler().ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("host %s: %d", host, w.Code)
		}
	}
	for _, header := range [][]string{{"Origin", "http://evil.example"}, {"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"}} {
		if status, _ := f.post(t, "/groups/0/transfer", url.Values{}, header...); status != http.StatusForbidden {
			t.Errorf("%s: %d", header, status)
		}
	}
	for _, token := range []string{"", "x"} {
		if status, _ := f.post(t, "/groups/0/transfer", url.Values{"csrf": {token}}); status != http.StatusForbidden {
			t.Errorf("token %q: %d", token, status)
		}
	}
	if f.cluster.transfer != "" {
		t.Error("a refused request was executed")
	}
}

func TestConsole_EscapesWhatNodesReport(t *testing.T) {
	f := open(t, false)
	for _, path := range []string{"/applications", "/locks", "/configuration", "/jobs", "/actors", "/workflows",
		"/topics", "/topics?pubsub=pubsub&topic=%3Cb%3Eorders&messages=true",
		"/nodes/%3Cb%3E"} {
		if _, body, _ := f.get(t, path); strings.Contains(body, "<b>") {
			t.Errorf("%s is not escaped", path)
		}
	}
}

func TestConsole_ReadOnlyChangesNothing(t *testing.T) {
	f := open(t, false)
	for path, form := range map[string]url.Values{
		"/groups/0/transfer": {"to": {"b"}},
		"/state/save":        {"app": {"shop"}, "store": {store}, "key": {"k"}, "value": {"1"}},
		"/state/delete":      {"app": {"shop"}, "store": {store}, "key": {"k"}},
	} {
		if status, body := f.post(t, path, form); status != http.StatusForbidden || !strings.Contains(body,
			"--console-write") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	_, body := f.post(t, "/try", url.Values{"kind": {"save"}, "app": {"shop"}, "store": {"s"}, "key": {"k"},
		"value": {"1"}})
	if !strings.Contains(body, "--console-write") || strings.Contains(body, "Connection refused") {
		t.Errorf("try: %s", body)
	}
}

func TestConsole_StateIsSavedAndDeletedWithETags(t *testing.T) {
	f := open(t, true)
	base := url.Values{"app": {"shop"}, "store": {store}, "key": {"order"}}
	with := func(more ...string) url.Values {
		v := url.Values{}
		for k, x := range base {
			v[k] = x
		}
		for i := 0; i < len(more); i += 2 {
			v.Set(more[i], more[i+1])
		}
		return v
	}
	if status, body := f.post(t, "/state/save", with("value", `{"total": 1}`)); status != http.StatusOK ||
		!strings.Contains(body, "&#34;total&#34;: 1") {
		t.Fatalf("create: %d %s", status, body)
	}
	if status, _ := f.post(t, "/state/save", with("value", "2")); status != http.StatusConflict {
		t.Errorf("create again: %d", status)
	}
	if status, body := f.post(t, "/state/save", with("value", "{", "etag", "1")); status != http.StatusBadRequest {
		t.Errorf("no JSON: %d %s", status, body)
	}
	if status, _ := f.post(t, "/state/delete", with("etag", "999")); status != http.StatusConflict {
		t.Errorf("delete of another version: %d", status)
	}
	_, page, _ := f.get(t, "/state?app=shop&key=order&store="+store)
	etag := regexp.MustCompile(`name="etag" value="([^"]+)"`).FindStringSubmatch(page)
	if etag == nil {
		t.Fatalf("no ETag: %s", page)
	}
	if status, _ := f.post(t, "/state/delete", with("etag", etag[1])); status != http.StatusOK {
		t.Errorf("delete: %d", status)
	}
	for _, want := range []string{`action="save value"`, `action="read value"`, `action="delete key"`, "key=order"} {
		if !strings.Contains(f.log.String(), want) {
			t.Errorf("the audit log has no %s:\n%s", want, f.log)
		}
	}
	if strings.Contains(f.log.String(), "total") {
		t.Error("the audit log has a value")
	}
}

func TestConsole_ReleasesLockWithItsToken(t *testing.T) {
	for _, write := range []bool{true, false} {
		f := open(t, write)
		_, page, _ := f.get(t, "/locks")
		if !strings.Contains(page, ">42s<") || !strings.Contains(page, ">1 min<") {
			t.Errorf("the page does not show the lease and what is left of it: %s", page)
		}
		if strings.Contains(page, "/locks/release") != write {
			t.Errorf("writing allowed: %t: %s", write, page)
		}
		f.post(t, "/locks/release", url.Values{"store": {"lockstore"}, "prefix": {"shop"}, "resource": {"door"},
			"revision": {"7"}})
		if want := map[bool]string{true: "lockstore shop door 7"}[write]; f.blocks.released != want {
			t.Errorf("released %q, not %q", f.blocks.released, want)
		}
	}
}

func TestConsole_JobsShowWhatIsPastDueButNoData(t *testing.T) {
	f := open(t, false)
	_, body, _ := f.get(t, "/jobs?app=shop&name=n")
	for _, want := range []string{"2 jobs, 1 past due", "past due for 1 min", "status 500", "@every 1h", "in 59 min"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	if strings.Contains(body, "secret-of-job") {
		t.Error("the page shows the data of a job")
	}
	if want := (schema.JobSelection{App: "shop", Name: "n", Brief: true}); f.work.selected != want {
		t.Errorf("selected %+v", f.work.selected)
	}
}

func TestConsole_JobsAskForFewerIfTheyAreTooMany(t *testing.T) {
	f := open(t, false)
	f.work.err = fault.New(fault.TooLarge, "test", "too many")
	status, body, _ := f.get(t, "/jobs")
	if status != http.StatusOK || !strings.Contains(body, "choose an application or a prefix") ||
		!strings.Contains(body, `name="app"`) {
		t.Errorf("%d %s", status, body)
	}
}

func TestConsole_ActorsShowOwnersAndEpochs(t *testing.T) {
	_, body, _ := open(t, false).get(t, "/actors")
	for _, want := range []string{"Actors of shop", `href="/nodes/a"`, ">77<", ">78<", "the host has stopped",
		"1 reminder.", "wake", "R5/PT10S", "in 59 min"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
}

func TestConsole_WorkflowsShowStepsOverTime(t *testing.T) {
	f := open(t, false)
	_, body, _ := f.get(t, "/workflows?app=shop&name=order&status=RUNNING&within=1h")
	for _, want := range []string{"RUNNING", `href="/workflows?app=shop&amp;id=%3Cb%3E7"`, "after=TOKEN",
		"&amp;name=order"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	if want := []string{"RUNNING"}; f.flows.selected.App != "shop" || f.flows.selected.Since.IsZero() ||
		!slices.Equal(f.flows.selected.Statuses, want) {
		t.Errorf("selected %+v", f.flows.selected)
	}
	_, body, _ = f.get(t, "/workflows?app=shop&id=%3Cb%3E7")
	for _, want := range []string{"No worker of shop is connected", "(attempt 2)", "E: &lt;b&gt;no",
		`<rect class="fail activity" x="0.0" y="2" width="250.`, `<rect class="neutral child" x="500.`, `id=boss"`,
		`id=%3Cb%3Echild"`, "goes on", "Show payloads"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	if strings.Contains(body, "secret") || strings.Contains(body, "<b>") ||
		strings.Contains(f.log.String(), "payloads") {
		t.Errorf("%s, logged %s", body, f.log)
	}
	_, body, _ = f.get(t, "/workflows?app=shop&id=%3Cb%3E7&payloads=true")
	if !strings.Contains(body, "secret of the instance") || !strings.Contains(f.log.String(),
		`action="read payloads of a workflow"`) {
		t.Errorf("%s, logged %s", body, f.log)
	}
	if _, body, _ = f.get(t, "/workflows?app=shop&id=x"); !strings.Contains(body, "has no workflow instance x") {
		t.Errorf("an unknown instance: %s", body)
	}
}

func TestConsole_TopicsShowLagOfGroups(t *testing.T) {
	f := open(t, false)
	failed := `href="/topics?pubsub=pubsub&amp;topic=%3Cb%3Efailed"`
	_, body, _ := f.get(t, "/topics?pubsub=pubsub")
	for _, want := range []string{"2 topics, 1 with dead letters.", failed, "2.0 KiB", ">full<", "1000000+", ">none<",
		"2 h 0 min", "shop"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	if _, body, _ = f.get(t, "/topics?prefix=%3Cb%3Eord"); !strings.Contains(body, "1 topic, 0 with dead letters.") {
		t.Errorf("with a prefix: %s", body)
	}
	f.topics.lists.Store(0)
	_, body, _ = f.get(t, "/topics?pubsub=pubsub&topic=%3Cb%3Eorders&prefix=none")
	if n := f.topics.lists.Load(); n != 1 {
		t.Errorf("a page lists the topics %d times; each time counts the messages", n)
	}
	for _, want := range []string{"of at most 1.0 GiB", "24 h 0 min", failed, ">77<", ">78<", "Show messages"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	if strings.Contains(f.log.String(), "read messages") || f.topics.read.Topic != "" {
		t.Errorf("messages were read: %s", f.log)
	}
	if _, body, _ = f.get(t, "/topics?pubsub=pubsub&topic=x"); !strings.Contains(body,
		"pubsub component pubsub has no topic x") {
		t.Errorf("an unknown topic: %s", body)
	}
}

func TestConsole_DeadLettersAreShownOnRequestAndAudited(t *testing.T) {
	f := open(t, false)
	at := "/topics?pubsub=pubsub&topic=%3Cb%3Efailed"
	if _, body, _ := f.get(t, at); strings.Contains(body, "secret") || strings.Contains(f.log.String(), "audit") {
		t.Fatalf("messages were read without a request: %s, logged %s", body, f.log)
	}
	_, body, _ := f.get(t, at+"&messages=true")
	for _, want := range []string{"{\n  &#34;secret&#34;: &#34;&lt;b&gt;&#34;\n}", "&lt;b&gt;name=&lt;b&gt;", ">60<",
		"too much to show", "00000000  00 00", `messages=true&amp;offset=61&amp;`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	if strings.Contains(body, ">61<") || strings.Contains(body, "END OF TEXT") || len(body) > 64<<10 ||
		!utf8.ValidString(body) {
		t.Errorf("the page shows more than it may: %d bytes", len(body))
	}
	if logged := f.log.String(); strings.Contains(logged, "secret") ||
		!strings.Contains(logged, `action="read messages"`) ||
		!strings.Contains(logged, "pubsub=pubsub topic=<b>failed") {
		t.Errorf("logged %s", logged)
	}
	if !f.topics.read.Oldest || f.topics.read.Follow {
		t.Errorf("read %+v", f.topics.read)
	}
	f.get(t, at+"&messages=true&offset=61&within=1h")
	if r := f.topics.read; r.Offset == nil || *r.Offset != 61 || r.Since != nil || r.Oldest {
		t.Errorf("read %+v", r)
	}
	f.get(t, at+"&messages=true&within=1h")
	if r := f.topics.read; r.Since == nil || r.Offset != nil || r.Oldest {
		t.Errorf("read %+v", r)
	}
}

func TestConsole_TransfersLeadershipAtLeader(t *testing.T) {
	f := open(t, true)
	if status, _ := f.post(t, "/groups/0/transfer",
		url.Values{"to": {"b"}}); status != http.StatusOK || f.cluster.transfer != "a to b" {
		t.Errorf("%d, %q", status, f.cluster.transfer)
	}
}

func TestConsole_HealthSaysWhatIsWrong(t *testing.T) {
	silent := member("b", false)
	silent.View, silent.Err = nil, "connection refused"
	left := member("b", false)
	left.View, left.State = nil, "left"
	lost := member("a", true)
	lost.View.Status.Groups[0].Leader, lost.View.Status.Groups[0].State = "", "follower"
	issue := member("a", true)
	issue.View.Status.Issues = []schema.Issue{{About: "store x", Reason: "it does not answer"}}
	for want, members := range map[string][]console.Member{
		"Healthy: 2 nodes, 1 group with a leader, no problem.":        {member("a", true), member("b", false)},
		"Reads and writes work, but node b does not answer.":          {member("a", true), silent},
		"Writes fail: group 0 has no leader; node b does not answer.": {lost, silent},
		"Reads and writes work, with 1 problem, see the overview.":    {issue, member("b", false)},
		"Healthy: 1 node, 1 group with a leader, no problem.":         {member("a", true)},
		"The node is starting.":                                       nil,
	} {
		_, body, _ := openOn(t, false, members).get(t, "/")
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, regexp.MustCompile(`(?s)id="health".*?</p>`).FindString(body))
		}
	}
}

func TestConsole_OpenPageShowsSelectedCalls(t *testing.T) {
	f := open(t, false)
	if _, page, _ := f.get(t, "/calls"); !strings.Contains(page, "Calls are recorded while this page is open") {
		t.Errorf("got %s", page)
	}
	if f.calls.Watched() {
		t.Error("calls are recorded without an open page")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.URL+"/calls?app=shop&failed=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	stream, err := f.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Body.Close() }()
	lines := bufio.NewScanner(stream.Body)
	lines.Buffer(nil, 1<<20)
	next := func(part string) string {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), part) {
				return lines.Text()
			}
		}
		t.Fatalf("no event has %q: %v", part, lines.Err())
		return ""
	}
	next("Waiting for calls")
	note := func(app, route string, code int) {
		f.calls.HTTP(func() api.LoggedCall {
			return api.LoggedCall{App: app, Endpoint: route, Code: code, Begun: time.Now(), Level: "linearizable",
				Parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
		})
	}
	note("shop", "GET /well", 200)
	note("other", "GET /other", 500)
	note("shop", "GET /<b>{key}", 503)
	line := next("HTTP 503")
	for _, want := range []string{"GET /&lt;b&gt;{key}", "since the page was opened: 1.", "linearizable",
		"/calls?app=shop&amp;failed=1&amp;trace=0af7651916cd43dd8448eb211c80319c"} {
		if !strings.Contains(line, want) {
			t.Errorf("no %q in %s", want, line)
		}
	}
	if strings.Contains(line, "/well") || strings.Contains(line, "/other") {
		t.Errorf("calls that the filter does not select: %s", line)
	}
	cancel()
	testutil.Eventually(t, func() error {
		if f.calls.Watched() {
			return errors.New("calls are recorded after the page was closed")
		}
		return nil
	})
}

func TestConsole_OpenPageIsUpdatedAndClosedPageCostsNothing(t *testing.T) {
	f := open(t, false)
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.URL+"/nodes", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	stream, err := f.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Body.Close() }()
	silent := member("b", false)
	silent.View, silent.Err = nil, "connection refused"
	f.cluster.set([]console.Member{member("a", true), silent})
	lines := bufio.NewScanner(stream.Body)
	lines.Buffer(nil, 1<<20)
	found := false
	for !found && lines.Scan() {
		found = strings.HasPrefix(lines.Text(), "data: ") && strings.Contains(lines.Text(), "no answer")
	}
	if !found {
		t.Fatalf("the open page was not updated: %v", lines.Err())
	}
	cancel()
	f.client.CloseIdleConnections()
	testutil.Eventually(t, func() error {
		if n := runtime.NumGoroutine(); n > before {
			return fmt.Errorf("%d goroutines, %d before the page was opened", n, before)
		}
		return nil
	})
}
