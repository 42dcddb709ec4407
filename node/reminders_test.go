package node_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// callee is an application whose actors record their callbacks. The answer to the callback with the number stop has
// the cancel header.
type callee struct {
	server *httptest.Server

	mu     sync.Mutex
	got    []string // paths and bodies
	uris   []string // request URIs, as they were sent
	ticks  []string // ids of the ticks of reminders
	status int      // of the next answer; 0 = 200
	always int      // status of all answers; 0 = 200
	stop   int
}

// newCallee starts a callee, and sets its id and its port in config.
func newCallee(t *testing.T, config *node.Config) *callee {
	t.Helper()
	c := &callee{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /dapr/config", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"entities":["Counter"]}`)
	})
	mux.HandleFunc("PUT /actors/Counter/{id}/method/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got = append(c.got, strings.TrimPrefix(r.URL.Path, "/actors/Counter/")+" "+string(body))
		c.uris = append(c.uris, strings.TrimPrefix(r.RequestURI, "/actors/Counter/"))
		c.ticks = append(c.ticks, r.Header.Get("Quorate-Reminder-Tick")+"/"+r.Header.Get("Quorate-Reminder-Attempt"))
		if len(c.got) == c.stop {
			w.Header().Set("X-DaprReminderCancel", "true")
		}
		if c.status != 0 {
			w.WriteHeader(c.status)
			c.status = 0
		} else if c.always != 0 {
			w.WriteHeader(c.always)
		}
	})
	c.server = httptest.NewServer(mux)
	t.Cleanup(c.server.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(c.server.URL, "http://"), ":")
	config.App.ID = "bank"
	var err error
	if config.App.Port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *callee) callbacks() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.got...)
}

// await waits until there are n callbacks, and returns them.
func (c *callee) await(t *testing.T, n int) (got []string) {
	t.Helper()
	nodetest.Poll(t, func() error {
		if got = c.callbacks(); len(got) < n {
			return fmt.Errorf("callbacks %q, want %d", got, n)
		}
		return nil
	})
	return got
}

// oneCallee opens a node with a callee.
func oneCallee(t *testing.T) (*node.Node, *callee) {
	t.Helper()
	c := nodetest.Config(t)
	app := newCallee(t, &c)
	n := nodetest.Open(t, c)
	awaitType(t, n)
	return n, app
}

func awaitType(t *testing.T, n *node.Node) {
	t.Helper()
	nodetest.Poll(t, func() error {
		if _, text, _ := nodetest.Ask(t, n, http.MethodGet, "/v1.0/metadata", ""); !strings.Contains(text,
			`"type":"Counter"`) {
			return fmt.Errorf("no actors are registered: %s", text)
		}
		return nil
	})
}

func expect(t *testing.T, n *node.Node, code int, verb, path, body string) string {
	t.Helper()
	got, text, _ := nodetest.Ask(t, n, verb, "/v1.0/actors/Counter/"+path, body)
	if got != code {
		t.Fatalf("%s %s: %d %s, want %d", verb, path, got, text, code)
	}
	return text
}

func TestReminders_CallTheActor(t *testing.T) {
	n, app := oneCallee(t)
	expect(t, n, 204, "POST", "a/reminders/once", `{"dueTime":"10ms","data":{"x":[1]}}`)
	want := `a/method/remind/once {"data":{"x":[1]},"dueTime":"","period":""}` // as in Dapr
	if got := app.await(t, 1); got[0] != want {
		t.Errorf("the application got %s, want %s", got[0], want)
	}
	nodetest.Poll(t, func() error {
		if code, text, _ := nodetest.Ask(t, n, "GET", "/v1.0/actors/Counter/a/reminders/once", ""); code != 404 {
			return fmt.Errorf("after its only tick: %d %s", code, text)
		}
		return nil
	})
	expect(t, n, 204, "PUT", "a/reminders/three", `{"period":"R3/PT0.1S","data":"x"}`)
	app.await(t, 4)
	expect(t, n, 204, "PUT", "b/reminders/last", `{"dueTime":""}`)
	got := app.await(t, 5)
	if !strings.HasPrefix(got[4], "b/method/remind/last ") ||
		got[3] != `a/method/remind/three {"data":"x","dueTime":"","period":""}` {
		t.Errorf("callbacks %q", got)
	}
}

// A callback has the data of the registration: null if that was given, and no field if none was.
func TestReminders_KeepNullAndAbsentData(t *testing.T) {
	n, app := oneCallee(t)
	for i, c := range []struct{ path, body, want string }{
		{"a/reminders/r", `{}`, `a/method/remind/r {"dueTime":"","period":""}`},
		{"a/reminders/r", `{"data":null}`, `a/method/remind/r {"data":null,"dueTime":"","period":""}`},
		{"a/timers/t", `{}`, `a/method/timer/t {"callback":"","dueTime":"","period":""}`},
		{"a/timers/t", `{"data":null}`, `a/method/timer/t {"data":null,"callback":"","dueTime":"","period":""}`},
	} {
		expect(t, n, 204, "POST", c.path, c.body)
		if got := app.await(t, i+1); got[i] != c.want {
			t.Errorf("%s %s: the application got %s, want %s", c.path, c.body, got[i], c.want)
		}
	}
}

// With --disable-init-endpoints config, an application does not get GET /dapr/config.
func TestInitOff_DoesNotAskForTheConfiguration(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/dapr/config" {
			asked.Add(1)
		}
	}))
	t.Cleanup(server.Close)
	c := nodetest.Config(t)
	c.App.ID, c.App.InitOff = "bank", []string{node.InitConfig}
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	var err error
	if c.App.Port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	n := nodetest.Open(t, c)
	if code, text, _ := nodetest.Ask(t, n, "POST", "/v1.0/actors/Counter/a/reminders/r", `{}`); code != 403 {
		t.Errorf("%d %s", code, text)
	}
	nodetest.Close(t, n)
	if got := asked.Load(); got != 0 {
		t.Errorf("the application got %d requests", got)
	}
}

// Dot segments of a method are removed over both APIs, so that the access rules and the application see one path.
func TestActorMethods_LoseDotSegments(t *testing.T) {
	n, app := oneCallee(t)
	client := runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0]))
	over := func(method string) error {
		_, err := client.InvokeActor(t.Context(), &runtimev1.InvokeActorRequest{ActorType: "Counter", ActorId: "a",
			Method: method})
		return err
	}
	for i, method := range []string{"admin/../legit", "../../../../legit", "./legit", "legit"} {
		if err := over(method); err != nil {
			t.Errorf("%s: %v", method, err)
		}
		expect(t, n, 200, "POST", "a/method/"+method, "")
		if got := app.await(t, 2*i+2); got[2*i] != "a/method/legit " || got[2*i+1] != "a/method/legit " {
			t.Errorf("%s: the application got %q", method, got)
		}
	}
	for _, method := range []string{"a\tb", "a\x00b", `..\a`, ".."} {
		if err := over(method); grpcstatus.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: %v", method, err)
		}
	}
	for _, method := range []string{"admin%2F..%2Flegit", "a%09b", ".."} {
		if text := expect(t, n, 400, "POST", "a/method/"+method, ""); !strings.Contains(text, "is not valid") {
			t.Errorf("%s: %s", method, text)
		}
	}
}

func TestReminders_AreReadReplacedAndDeleted(t *testing.T) {
	n, app := oneCallee(t)
	expect(t, n, 204, "POST", "a/reminders/r", `{"dueTime":"PT1H","period":"0h10m0s0ms0μs","ttl":"2h","data":[1]}`)
	var got map[string]any
	if err := json.Unmarshal([]byte(expect(t, n, 200, "GET", "a/reminders/r", "")), &got); err != nil {
		t.Fatal(err)
	}
	want := "map[actorID:a actorType:Counter data:[1] dueTime:PT1H period:@every 10m0s ttl:2h]"
	if text := fmt.Sprint(got); text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	if text := expect(t, n, 409, "POST", "a/reminders/r", `{"dueTime":"1h","overwrite":false}`); !strings.Contains(text,
		"ERR_ACTOR_REMINDER_ALREADY_EXISTS") {
		t.Error(text)
	}
	for body, part := range map[string]string{
		`{"dueTime":"soon"}`:              "dueTime: ",
		`{"period":"R0/PT1S"}`:            "period: the number of ticks",
		`{"period":"-1s"}`:                "period: ",
		`{"dueTime":"1h","ttl":"x"}`:      "ttl: ",
		`{"dueTime":"1h","period":"9ms"}`: "shorter than 10ms",
	} {
		if text := expect(t, n, 400, "PUT", "a/reminders/r", body); !strings.Contains(text, part) ||
			!strings.Contains(text, "ERR_ACTOR_REMINDER_CREATE") {
			t.Errorf("%s: %s", body, text)
		}
	}
	expect(t, n, 204, "PUT", "a/reminders/r", `{"dueTime":"1h","period":"P1M"}`)
	expect(t, n, 204, "DELETE", "a/reminders/r", "")
	expect(t, n, 404, "GET", "a/reminders/r", "")
	code, text, _ := nodetest.Ask(t, n, "POST", "/v1.0/actors/Other/a/reminders/r", `{"dueTime":"1h"}`)
	if code != 403 || !strings.Contains(text, "ERR_ACTOR_REMINDER_NON_HOSTED") {
		t.Errorf("a type of no application: %d %s", code, text)
	}
	if got := app.callbacks(); len(got) != 0 {
		t.Errorf("callbacks %q", got)
	}
}

// An application cannot set, read or remove reminders of another application's actors, nor see their state and timers.
func TestReminders_BelongToTheApplicationOfTheActor(t *testing.T) {
	t.Parallel()
	var app *callee
	nodes, _ := nodetest.ThreeWith(t, func(c *node.Config) {
		if app == nil {
			app = newCallee(t, c)
		} else {
			c.App.ID, c.API.HostWait = "thief", 100*time.Millisecond
		}
	})
	owner, thief := nodes[0], nodes[1]
	awaitType(t, owner)
	expect(t, owner, 204, "POST", "a/reminders/r", `{"dueTime":"1h"}`)
	nodetest.Poll(t, func() error { // again if the host loses its lease, and with it the actor, before the write
		for _, r := range [][3]string{{"POST", "timers/t", `{"dueTime":"1h"}`},
			{"PUT", "state", `[{"operation":"upsert","request":{"key":"k","value":1}}]`}} {
			if code, text, _ := nodetest.Ask(t, owner, r[0], "/v1.0/actors/Counter/a/"+r[1], r[2]); code != 204 {
				return fmt.Errorf("%s %s: %d %s", r[0], r[1], code, text)
			}
		}
		return nil
	})
	for verb, body := range map[string]string{"POST": `{"dueTime":"2h"}`, "PUT": `{"dueTime":"2h"}`, "GET": "",
		"HEAD": "", "DELETE": ""} {
		if text := expect(t, thief, 403, verb, "a/reminders/r", body); verb != "HEAD" &&
			!strings.Contains(text, "ERR_ACTOR_REMINDER_NON_HOSTED") {
			t.Errorf("%s: %s", verb, text)
		}
	}
	c := runtimev1.NewDaprClient(connect(t, thief.Addresses().GRPC[0]))
	_, err := c.RegisterActorReminder(t.Context(), &runtimev1.RegisterActorReminderRequest{ActorType: "Counter",
		ActorId: "a", Name: "r", DueTime: "2h"})
	wantStatus(t, err, codes.PermissionDenied)
	_, err = c.GetActorReminder(t.Context(), &runtimev1.GetActorReminderRequest{ActorType: "Counter", ActorId: "a",
		Name: "r"})
	wantStatus(t, err, codes.PermissionDenied)
	_, err = c.UnregisterActorReminder(t.Context(), &runtimev1.UnregisterActorReminderRequest{ActorType: "Counter",
		ActorId: "a", Name: "r"})
	wantStatus(t, err, codes.PermissionDenied)
	for _, id := range []string{"", "a"} {
		_, err = c.ListActorReminders(t.Context(), &runtimev1.ListActorRemindersRequest{ActorType: "Counter",
			ActorId: &id})
		wantStatus(t, err, codes.PermissionDenied)
		_, err = c.UnregisterActorRemindersByType(t.Context(), &runtimev1.UnregisterActorRemindersByTypeRequest{
			ActorType: "Counter", ActorId: &id})
		wantStatus(t, err, codes.PermissionDenied)
	}
	expect(t, thief, 500, "POST", "a/timers/t", `{"dueTime":"2h"}`)
	expect(t, thief, 204, "GET", "a/state/k", "") // this application has no state of such an actor
	expect(t, owner, 200, "GET", "a/state/k", "")
	if text := expect(t, owner, 200, "GET", "a/reminders/r", ""); !strings.Contains(text, `"dueTime":"1h"`) {
		t.Error(text)
	}
}

// Ids and names may have the separator of stored keys.
func TestActors_IdsAndNamesWithBars(t *testing.T) {
	n, app := oneCallee(t)
	c := runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0]))
	ids := []string{"a", "a|", "|a|b", "a||b", "||"}
	for i, id := range ids {
		path := url.PathEscape(id)
		expect(t, n, 200, "POST", path+"/method/m", "")
		expect(t, n, 204, "PUT", path+"/state",
			fmt.Sprintf(`[{"operation":"upsert","request":{"key":"|k","value":%d}}]`, i))
		expect(t, n, 204, "POST", path+"/reminders/%7C%7Cr%7C%7C", `{"dueTime":"1h"}`)
		_, err := c.RegisterActorReminder(t.Context(), &runtimev1.RegisterActorReminderRequest{ActorType: "Counter",
			ActorId: id, Name: "re||mind", DueTime: ""})
		wantStatus(t, err, codes.OK)
		_, err = c.RegisterActorTimer(t.Context(), &runtimev1.RegisterActorTimerRequest{ActorType: "Counter",
			ActorId: id, Name: "t||", DueTime: ""})
		wantStatus(t, err, codes.OK)
		got := strings.Join(app.await(t, 3*i+3)[3*i:], "\n")
		for _, want := range []string{id + "/method/m ", id + "/method/remind/re||mind ", id + "/method/timer/t|| "} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: the application got %s, not %s", id, got, want)
			}
		}
	}
	for i, id := range ids {
		if text := expect(t, n, 200, "GET", url.PathEscape(id)+"/state/%7Ck", ""); text != fmt.Sprint(i) {
			t.Errorf("%s: state %s, want %d", id, text, i)
		}
		got, err := c.GetActorReminder(t.Context(), &runtimev1.GetActorReminderRequest{ActorType: "Counter",
			ActorId: id, Name: "||r||"})
		if err != nil || got.GetActorId() != id {
			t.Errorf("%s: %v, %v", id, got, err)
		}
		list, err := c.ListActorReminders(t.Context(), &runtimev1.ListActorRemindersRequest{ActorType: "Counter",
			ActorId: &id})
		if err != nil || len(list.GetReminders()) != 1 || list.GetReminders()[0].GetReminder().GetActorId() != id {
			t.Errorf("%s: %v, %v", id, list, err)
		}
		expect(t, n, 204, "DELETE", url.PathEscape(id)+"/reminders/%7C%7Cr%7C%7C", "")
	}
	list, err := c.ListActorReminders(t.Context(), &runtimev1.ListActorRemindersRequest{ActorType: "Counter"})
	if err != nil || len(list.GetReminders()) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	for _, name := range []string{"j||", "||j", "a|||b"} {
		_, err := c.ScheduleJob(t.Context(), &runtimev1.ScheduleJobRequest{Job: &runtimev1.Job{Name: name,
			DueTime: proto.String("1h")}})
		wantStatus(t, err, codes.OK)
		at := "/v1.0-alpha1/jobs/" + url.PathEscape(name)
		if code, text, _ := nodetest.Ask(t, n, "GET", at, ""); code != 200 || !strings.Contains(text, name) {
			t.Errorf("job %s: %d %s", name, code, text)
		}
		if code, text, _ := nodetest.Ask(t, n, "DELETE", at, ""); code != 204 {
			t.Errorf("job %s: %d %s", name, code, text)
		}
	}
}

// Types, ids and names that an application could read as dot segments of a path are refused by every request.
func TestActors_RefuseDotSegments(t *testing.T) {
	n, app := oneCallee(t)
	c := runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0]))
	for _, bad := range []string{".", "..", "..;x"} {
		for _, verb := range []string{"GET", "POST", "PUT", "DELETE"} {
			path := strings.ReplaceAll(url.PathEscape(bad), ".", "%2E")
			expect(t, n, 400, verb, path+"/method/m", "")
			expect(t, n, 400, verb, path+"/reminders/r", "{}")
			expect(t, n, 400, verb, "a/reminders/"+path, "{}")
			if verb != "GET" {
				expect(t, n, 400, verb, path+"/timers/r", "{}")
				expect(t, n, 400, verb, "a/timers/"+path, "{}")
			}
		}
		expect(t, n, 400, "PUT", strings.ReplaceAll(url.PathEscape(bad), ".", "%2E")+"/state", "[]")
		for _, a := range []api.Actor{{Type: bad, ID: "a"}, {Type: "Counter", ID: bad}} {
			_, invoked := c.InvokeActor(t.Context(), &runtimev1.InvokeActorRequest{ActorType: a.Type, ActorId: a.ID,
				Method: "m"})
			_, read := c.GetActorState(t.Context(), &runtimev1.GetActorStateRequest{ActorType: a.Type, ActorId: a.ID,
				Key: "k"})
			_, wrote := c.ExecuteActorStateTransaction(t.Context(), &runtimev1.ExecuteActorStateTransactionRequest{
				ActorType: a.Type, ActorId: a.ID})
			_, listed := c.ListActorReminders(t.Context(), &runtimev1.ListActorRemindersRequest{ActorType: a.Type,
				ActorId: &a.ID})
			_, removed := c.UnregisterActorRemindersByType(t.Context(),
				&runtimev1.UnregisterActorRemindersByTypeRequest{ActorType: a.Type, ActorId: &a.ID})
			for _, err := range []error{invoked, read, wrote, listed, removed} {
				wantStatus(t, err, codes.InvalidArgument)
			}
			wantRefusedNames(t, c, a, "r")
		}
		wantRefusedNames(t, c, api.Actor{Type: "Counter", ID: "a"}, bad)
	}
	if got := app.callbacks(); len(got) != 0 {
		t.Errorf("the application got %q", got)
	}
}

// wantRefusedNames checks that requests for a reminder and a timer are refused.
func wantRefusedNames(t *testing.T, c runtimev1.DaprClient, a api.Actor, name string) {
	t.Helper()
	_, set := c.RegisterActorReminder(t.Context(), &runtimev1.RegisterActorReminderRequest{ActorType: a.Type,
		ActorId: a.ID, Name: name})
	_, read := c.GetActorReminder(t.Context(), &runtimev1.GetActorReminderRequest{ActorType: a.Type, ActorId: a.ID,
		Name: name})
	_, removed := c.UnregisterActorReminder(t.Context(), &runtimev1.UnregisterActorReminderRequest{ActorType: a.Type,
		ActorId: a.ID, Name: name})
	_, started := c.RegisterActorTimer(t.Context(), &runtimev1.RegisterActorTimerRequest{ActorType: a.Type,
		ActorId: a.ID, Name: name})
	_, ended := c.UnregisterActorTimer(t.Context(), &runtimev1.UnregisterActorTimerRequest{ActorType: a.Type,
		ActorId: a.ID, Name: name})
	for _, err := range []error{set, read, removed, started, ended} {
		wantStatus(t, err, codes.InvalidArgument)
	}
}

func TestReminders_StopWhenTheActorCancels(t *testing.T) {
	n, app := oneCallee(t)
	app.stop = 2
	expect(t, n, 204, "POST", "a/reminders/r", `{"period":"100ms"}`)
	app.await(t, 2)
	nodetest.Poll(t, func() error {
		if code, _, _ := nodetest.Ask(t, n, "GET", "/v1.0/actors/Counter/a/reminders/r", ""); code != 404 {
			return fmt.Errorf("the reminder is there: %d", code)
		}
		return nil
	})
	if got := app.callbacks(); len(got) != 2 {
		t.Errorf("callbacks %q", got)
	}
}

// A failed tick is delivered again with the same id.
func TestReminders_FailedTickIsRepeated(t *testing.T) {
	n, app := oneCallee(t)
	app.status = 500
	expect(t, n, 204, "POST", "a/reminders/r",
		`{"dueTime":"10ms","failurePolicy":{"constant":{"interval":"0.1s","maxRetries":1}}}`)
	app.await(t, 2)
	app.mu.Lock()
	defer app.mu.Unlock()
	first, _, _ := strings.Cut(app.ticks[0], "/")
	if app.ticks[0] != first+"/1" || app.ticks[1] != first+"/2" {
		t.Errorf("ticks %q", app.ticks)
	}
}

func TestTimers_CallTheActor(t *testing.T) {
	n, app := oneCallee(t)
	expect(t, n, 204, "POST", "a/timers/t", `{"dueTime":"1h"}`) // activates the actor, as in Dapr
	expect(t, n, 200, "POST", "a/method/m", "")
	expect(t, n, 204, "POST", "a/timers/t", `{"period":"R2/PT0.1S","callback":"flush","data":1}`)
	got := app.await(t, 3)
	if want := `a/method/timer/t {"data":1,"callback":"flush","dueTime":"","period":"R2/PT0.1S"}`; got[1] != want ||
		got[2] != want {
		t.Errorf("callbacks %q, want %s", got[1:], want)
	}
	expect(t, n, 204, "PUT", "a/timers/t", `{"dueTime":"1h"}`)
	expect(t, n, 204, "DELETE", "a/timers/t", "")
}

// A list of reminders that has several pages is complete and sorted.
func TestReminders_ListHasAllPages(t *testing.T) {
	n, _ := oneCallee(t)
	c := runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0]))
	const all = 20 // a page has 16 reminders of this size
	for i := range all {
		_, err := c.RegisterActorReminder(t.Context(), &runtimev1.RegisterActorReminderRequest{ActorType: "Counter",
			ActorId: fmt.Sprintf("%02d", i), Name: "r", DueTime: "1h", Data: make([]byte, 256<<10)})
		wantStatus(t, err, codes.OK)
	}
	list, err := c.ListActorReminders(t.Context(), &runtimev1.ListActorRemindersRequest{ActorType: "Counter"},
		grpc.MaxCallRecvMsgSize(16<<20))
	if err != nil || len(list.GetReminders()) != all {
		t.Fatalf("%d reminders, %v", len(list.GetReminders()), err)
	}
	for i, r := range list.GetReminders() {
		if got, want := r.GetReminder().GetActorId(), fmt.Sprintf("%02d", i); got != want {
			t.Errorf("listed actor %s, want %s", got, want)
		}
	}
}

// Over gRPC, data are bytes, which the application gets as base64.
func TestReminders_OverGRPC(t *testing.T) {
	n, app := oneCallee(t)
	c := runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0]))
	_, err := c.RegisterActorReminder(t.Context(), &runtimev1.RegisterActorReminderRequest{ActorType: "Counter",
		ActorId: "a", Name: "r", DueTime: "1h", Data: []byte("abc")})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.RegisterActorReminder(t.Context(), &runtimev1.RegisterActorReminderRequest{ActorType: "Counter",
		ActorId: "periodic", Name: "r", DueTime: "1h", Period: "R4/PT1S"})
	wantStatus(t, err, codes.OK)
	periodic, err := c.GetActorReminder(t.Context(), &runtimev1.GetActorReminderRequest{ActorType: "Counter",
		ActorId: "periodic", Name: "r"})
	if err != nil || periodic.GetPeriod() != "@every 1s" || periodic.GetDueTime() != "1h" {
		t.Errorf("%v, %v", periodic, err)
	}
	expect(t, n, 204, "DELETE", "periodic/reminders/r", "")
	got, err := c.GetActorReminder(t.Context(), &runtimev1.GetActorReminderRequest{ActorType: "Counter", ActorId: "a",
		Name: "r"})
	if err != nil {
		t.Fatal(err)
	}
	keep := false
	_, err = c.RegisterActorReminder(t.Context(), &runtimev1.RegisterActorReminderRequest{ActorType: "Counter",
		ActorId: "a", Name: "r", DueTime: "1h", Overwrite: &keep})
	wantStatus(t, err, codes.AlreadyExists)
	var data wrapperspb.BytesValue
	if err := got.GetData().UnmarshalTo(&data); err != nil || string(data.GetValue()) != "abc" || got.GetDueTime() !=
		"1h" || got.Period != nil {
		t.Errorf("%v, %v", got, err)
	}
	list, err := c.ListActorReminders(t.Context(), &runtimev1.ListActorRemindersRequest{ActorType: "Counter"})
	if err != nil || len(list.GetReminders()) != 1 || list.GetReminders()[0].GetName() != "r" {
		t.Errorf("%v, %v", list, err)
	}
	_, err = c.UnregisterActorRemindersByType(t.Context(),
		&runtimev1.UnregisterActorRemindersByTypeRequest{ActorType: "Counter"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = c.RegisterActorReminder(t.Context(), &runtimev1.RegisterActorReminderRequest{ActorType: "Counter",
		ActorId: "a", Name: "now", Data: []byte("abc")}); err != nil {
		t.Fatal(err)
	}
	if got := app.await(t, 1); got[0] != `a/method/remind/now {"data":"YWJj","dueTime":"","period":""}` {
		t.Errorf("callbacks %q", got)
	}
}

// The answer 404 is a failed attempt, because an application that starts may not know its actors yet. If the last
// attempt has that answer, the reminder is dropped.
func TestReminders_TheAnswer404IsRetried(t *testing.T) {
	c := nodetest.Config(t)
	app := newCallee(t, &c)
	n := nodetest.Open(t, c)
	awaitType(t, n)
	const policy = `{"failurePolicy":{"constant":{"interval":"10ms","maxRetries":2}}}`
	gone := func() {
		t.Helper()
		nodetest.Poll(t, func() error {
			if code, _, _ := nodetest.Ask(t, n, "GET", "/v1.0/actors/Counter/a/reminders/r", ""); code != 404 {
				return fmt.Errorf("the reminder is there: %d", code)
			}
			return nil
		})
	}
	app.status = http.StatusNotFound
	expect(t, n, 204, "POST", "a/reminders/r", policy)
	app.await(t, 2)
	gone()
	app.mu.Lock()
	app.always = http.StatusNotFound
	app.mu.Unlock()
	expect(t, n, 204, "POST", "a/reminders/r", policy)
	app.await(t, 5)
	gone()
	if got := app.callbacks(); len(got) != 5 {
		t.Errorf("callbacks %q", got)
	}
}

// Without a policy, a reminder whose last attempt has the answer 404 is dropped, too.
func TestReminders_TheAnswer404EndsThem(t *testing.T) {
	c := nodetest.Config(t)
	app := newCallee(t, &c)
	app.always = http.StatusNotFound
	n := nodetest.Open(t, c)
	awaitType(t, n)
	expect(t, n, 204, "POST", "a/reminders/r", "{}")
	app.await(t, 4)
	nodetest.Poll(t, func() error {
		if code, _, _ := nodetest.Ask(t, n, "GET", "/v1.0/actors/Counter/a/reminders/r", ""); code != 404 {
			return fmt.Errorf("the reminder is there: %d", code)
		}
		return nil
	})
}

// A reminder that falls due while its node is down fires after the start. It fires once.
func TestReminders_SurviveTheRestartOfAllNodes(t *testing.T) {
	t.Parallel()
	c := nodetest.Config(t)
	app := newCallee(t, &c)
	c.Data.Dir = t.TempDir()
	n := nodetest.Open(t, c)
	awaitType(t, n)
	due := time.Now().Add(1500 * time.Millisecond).UTC().Format(time.RFC3339Nano)
	expect(t, n, 204, "POST", "a/reminders/r", `{"dueTime":"`+due+`"}`)
	nodetest.Close(t, n)
	if got := app.callbacks(); len(got) != 0 {
		t.Skipf("the node took longer to stop than the reminder to fall due: %q", got)
	}
	n = nodetest.Open(t, c)
	app.await(t, 1)
	nodetest.Poll(t, func() error {
		if code, _, _ := nodetest.Ask(t, n, "GET", "/v1.0/actors/Counter/a/reminders/r", ""); code != 404 {
			return fmt.Errorf("the reminder is there: %d", code)
		}
		return nil
	})
	if got := app.callbacks(); len(got) != 1 {
		t.Errorf("callbacks %q", got)
	}
}

// When the node with the actor stops, its reminders continue at another node. Every node can set, read and remove
// them.
func TestReminders_MoveToAnotherNode(t *testing.T) {
	t.Parallel()
	var apps []*callee
	nodes, _ := nodetest.ThreeWith(t, func(c *node.Config) {
		apps = append(apps, newCallee(t, c))
	})
	for _, n := range nodes {
		awaitType(t, n)
	}
	expect(t, nodes[2], 204, "POST", "a/reminders/r", `{"period":"100ms"}`)
	expect(t, nodes[0], 200, "GET", "a/reminders/r", "")
	owner := -1
	nodetest.Poll(t, func() error {
		for i, app := range apps {
			if len(app.callbacks()) > 1 {
				owner = i
				return nil
			}
		}
		return fmt.Errorf("no callbacks")
	})
	nodetest.Close(t, nodes[owner])
	nodetest.Poll(t, func() error {
		for i, app := range apps {
			if i != owner && len(app.callbacks()) > 1 {
				return nil
			}
		}
		return fmt.Errorf("no callbacks at another node")
	})
	expect(t, nodes[(owner+1)%3], 204, "DELETE", "a/reminders/r", "")
	expect(t, nodes[(owner+2)%3], 404, "GET", "a/reminders/r", "")
}
