package configurations_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/configuration/records"
	"github.com/quorate/quorate/component/state/inmemory"
)

// configured is a configuration service with an application that is called about changes.
type configured struct {
	*configurations.Service
	world    *apitest.World
	listener *apitest.Listener
}

func newConfigured(t *testing.T) configured {
	t.Helper()
	w, l := apitest.New(t), &apitest.Listener{Notices: make(chan apitest.Notice, 1000)}
	s := configurations.New(configurations.Options{App: w.App, Stores: w.Configurations,
		Policies: apitest.NoPolicies{}, Receiver: l, Metrics: configurations.NewMetrics(),
		Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(s.Close)
	return configured{s, w, l}
}

func (c configured) set(t *testing.T, key, value string) {
	t.Helper()
	if _, err := c.Write(t.Context(), configurations.WriteRequest{Store: "items",
		Changes: []configurations.Change{{Key: key, Value: value}}}); err != nil {
		t.Fatal(err)
	}
}

func (c configured) subscribe(t *testing.T, keys ...string) string {
	t.Helper()
	id, err := c.SubscribeCallback(t.Context(), configurations.Request{Store: "items", Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (c configured) notice(t *testing.T) apitest.Notice {
	t.Helper()
	select {
	case n := <-c.listener.Notices:
		return n
	case <-time.After(30 * time.Second):
		t.Fatal("the application was not called")
		return apitest.Notice{}
	}
}

// settling is a SessionMerger whose tokens are sets of letters. An answer settles the letters that it lacks.
type settling struct{}

func (settling) MergeSessions(a, b string) (string, bool) { return a + strings.Trim(b, a), true }
func (settling) ShareSession(token, _ string) string      { return token }
func (settling) VerifySession(_ context.Context, own, _ string) (string, error) {
	return own, nil
}

func (s settling) AnswerSession(own, sent, got string) (string, bool) {
	for _, letter := range sent {
		if !strings.ContainsRune(got, letter) {
			own = strings.ReplaceAll(own, string(letter), "")
		}
	}
	return s.MergeSessions(own, got)
}

// losing is a store that has lost the write w of its sessions.
type losing struct{ configuration.Store }

func (losing) Get(context.Context, configuration.GetRequest) (configuration.Found, error) {
	return configuration.Found{Session: "n"}, nil
}

// A read of configuration has no level, so a later read of state must report a lost write of the session.
func TestConfigurations_ReadKeepsLostWriteForReport(t *testing.T) {
	w, sessions := apitest.New(t), api.NewSessions(settling{})
	w.Configurations.List = []*configuration.Instance{{Name: "items", Store: losing{}}}
	s := configurations.New(configurations.Options{App: w.App, Callee: w.App, Stores: w.Configurations,
		Policies: apitest.NoPolicies{}, Receiver: &apitest.Listener{}, Metrics: configurations.NewMetrics(),
		Sessions: sessions, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(s.Close)
	sessions.Inbound(w.App, "", "w")
	found, err := s.Get(t.Context(), configurations.Request{Store: "items", Session: "w"})
	if got := sessions.Token(w.App, ""); err != nil || found.Session != "wn" || got != "wn" {
		t.Errorf("the client gets %q, and the session is %q: %v", found.Session, got, err)
	}
}

func TestConfigurations_CallTheApplication(t *testing.T) {
	c := newConfigured(t)
	earlier := c.subscribe(t, "a", "b")
	id := c.subscribe(t, "b", "a", "a") // identical
	if err := c.UnsubscribeCallback("items", earlier); id == earlier ||
		codeOfError(err) != api.CodeConfigurationUnsubscribe {
		t.Errorf("the id %s became %s, and the end of the earlier one gave %v", earlier, id, err)
	}
	c.set(t, "unseen", "0")
	c.set(t, "a", "1")
	if got := c.notice(t); got.Store != "items" || got.Key != "a" ||
		!strings.HasPrefix(got.Body, `{"id":"`+id+`","items":{"a":{"value":"1","version":"`) {
		t.Errorf("%+v", got)
	}
	if _, err := c.Write(t.Context(), configurations.WriteRequest{Store: "items",
		Changes: []configurations.Change{{Key: "a", Delete: true}}}); err != nil {
		t.Fatal(err)
	}
	if got := c.notice(t); got.Body != `{"id":"`+id+`","items":{"a":{}}}` {
		t.Errorf("%+v", got)
	}
	if err := c.UnsubscribeCallback("items", id); err != nil {
		t.Fatal(err)
	}
	other := c.subscribe(t, "end")
	c.set(t, "a", "2")
	c.set(t, "end", "1")
	if got := c.notice(t); got.Key != "end" {
		t.Errorf("after the end of the subscription: %+v", got)
	}
	if ok, err := c.Unsubscribe("items", other); ok || err != nil {
		t.Errorf("the gRPC form ended a subscription over HTTP: %v, %v", ok, err)
	}
}

func TestConfigurations_RefusedChangeIsSentAgain(t *testing.T) {
	c := newConfigured(t)
	c.listener.Refuse(1)
	c.subscribe(t)
	c.set(t, "a", "1")
	if got := c.notice(t); !strings.Contains(got.Body, `"value":"1"`) {
		t.Errorf("%+v", got)
	}
}

// queued is a configuration store whose only subscription is a queue that the test fills.
type queued struct {
	configuration.Store
	queue *configuration.Queue
}

func (q queued) Subscribe(context.Context, configuration.SubscribeRequest) (configuration.Subscription, error) {
	return q.queue, nil
}

func TestConfigurations_OfflineApplicationGetsNewestValueOnly(t *testing.T) {
	c := newConfigured(t)
	store := queued{queue: configuration.NewQueue(func() {})}
	c.world.Configurations.List[0].Store = store
	c.subscribe(t)
	c.listener.Offline(true)
	for i := range 20 {
		store.queue.Put(configuration.Item{Key: "a", Value: fmt.Sprint(i), Version: fmt.Sprint(i + 1)})
	}
	c.listener.Offline(false)
	calls := 0
	for last := ""; !strings.Contains(last, `"value":"19"`); calls++ {
		last = c.notice(t).Body
	}
	if calls > 2 { // the first may have left the queue before the others came
		t.Errorf("%d calls for one key of an application that was offline", calls)
	}
}

func TestConfigurations_InitialSendsPresentItems(t *testing.T) {
	c := newConfigured(t)
	c.set(t, "a", "1")
	r := configurations.Request{Store: "items", Metadata: map[string]string{"initial": "true"}}
	if _, err := c.SubscribeCallback(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if got := c.notice(t); got.Key != "a" {
		t.Errorf("%+v", got)
	}
	r.Metadata["initial"] = "maybe"
	if _, err := c.SubscribeCallback(t.Context(), r); codeOfError(err) != api.CodeMalformed {
		t.Errorf("%v", err)
	}
}

func TestConfigurations_LimitOfSubscriptions(t *testing.T) {
	c := newConfigured(t)
	for i := range configurations.MaxSubscriptions {
		c.subscribe(t, fmt.Sprint("k", i))
	}
	_, err := c.Subscribe(t.Context(), configurations.Request{Store: "items"})
	if codeOfError(err) != api.CodeConfigurationSubscribe || !strings.Contains(err.Error(), "128") {
		t.Errorf("%v", err)
	}
}

func TestConfigurations_StreamEndsWithUnsubscribeAndWithTheNode(t *testing.T) {
	c := newConfigured(t)
	first, err := c.Subscribe(t.Context(), configurations.Request{Store: "items"})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := c.Subscribe(t.Context(), configurations.Request{Store: "items"})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if ok, err := c.Unsubscribe("items", first.ID); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	if items, err := first.Next(t.Context()); len(items) > 0 || err != nil {
		t.Errorf("a stream that was unsubscribed has %v, %v", items, err)
	}
	c.set(t, "a", "1")
	if items, err := second.Next(t.Context()); len(items) != 1 || err != nil {
		t.Errorf("%v, %v", items, err)
	}
	c.Close()
	if _, err := second.Next(t.Context()); codeOfError(err) != api.CodeConfigurationSubscribe {
		t.Errorf("%v", err)
	}
	if _, err := c.Subscribe(t.Context(), configurations.Request{Store: "items"}); err == nil {
		t.Error("a node that stops accepted a subscription")
	}
}

func codeOfError(err error) string {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Code
	}
	return ""
}

// TestConfigurations_ReplacedStoreReportsDeletions replaces the store of a subscription, as a reload of components
// does. The subscription must report a key that was deleted meanwhile, although it has never delivered this key.
func TestConfigurations_ReplacedStoreReportsDeletions(t *testing.T) {
	for name, keys := range map[string][]string{"all": nil, "named": {"kept", "deleted"}} {
		t.Run(name, func(t *testing.T) {
			c := newConfigured(t)
			c.set(t, "kept", "1")
			c.set(t, "deleted", "1")
			s, err := c.Subscribe(t.Context(), configurations.Request{Store: "items", Keys: keys})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			inst := c.world.Configurations.List[0]
			old := inst.Store
			inst.Store = records.New(records.Options{Backing: inmemory.Open(inmemory.Options{}),
				Logger: slog.New(slog.DiscardHandler)})
			t.Cleanup(func() { _ = inst.Store.Close() })
			c.set(t, "kept", "2")
			if err := old.Close(); err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for len(got) < 2 {
				items, err := s.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, i := range items {
					got[i.Key] = i.Value
				}
			}
			if value, ok := got["deleted"]; !ok || value != "" || got["kept"] != "2" {
				t.Errorf("delivered %v", got)
			}
		})
	}
}

// slowKey is an application whose handler of one key does not answer.
type slowKey struct{ notices chan string }

func (slowKey) Healthy() (bool, string) { return true, "" }

func (s slowKey) Notify(ctx context.Context, _, key string, _ []byte) error {
	if key == "slow" {
		<-ctx.Done()
		return ctx.Err()
	}
	s.notices <- key
	return nil
}

func TestConfigurations_SlowKeyDoesNotHoldUpOthers(t *testing.T) {
	w, app := apitest.New(t), slowKey{make(chan string, 100)}
	s := configurations.New(configurations.Options{App: w.App, Stores: w.Configurations,
		Policies: apitest.NoPolicies{}, Receiver: app, Metrics: configurations.NewMetrics(),
		Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(s.Close)
	c := configured{Service: s}
	c.subscribe(t)
	c.set(t, "slow", "1")
	for i := range 30 {
		c.set(t, fmt.Sprint("k", i), "1")
	}
	for range 30 {
		select {
		case <-app.notices:
		case <-time.After(30 * time.Second):
			t.Fatal("the application was not called about other keys")
		}
	}
}

// hanging is a configuration store whose first subscription fails when its caller gives up.
type hanging struct {
	configuration.Store
	begun chan struct{}
}

func (h *hanging) Subscribe(ctx context.Context, r configuration.SubscribeRequest) (configuration.Subscription, error) {
	begun := h.begun
	if begun == nil {
		return h.Store.Subscribe(ctx, r)
	}
	h.begun = nil
	close(begun)
	<-ctx.Done()
	return nil, ctx.Err()
}

// A repeated call of SubscribeCallback must not rely on an earlier call that has not ended, because the earlier call
// may still fail.
func TestConfigurations_RepeatedCallDoesNotRelyOnUnfinishedOne(t *testing.T) {
	c := newConfigured(t)
	store := &hanging{Store: c.world.Configurations.List[0].Store, begun: make(chan struct{})}
	begun := store.begun
	c.world.Configurations.List[0].Store = store
	ctx, giveUp := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := c.SubscribeCallback(ctx, configurations.Request{Store: "items", Keys: []string{"a"}})
		first <- err
	}()
	<-begun
	id := c.subscribe(t, "a")
	giveUp()
	if err := <-first; err == nil {
		t.Error("the call that was given up has succeeded")
	}
	if err := c.UnsubscribeCallback("items", id); err != nil {
		t.Errorf("the subscription of the repeated call: %v", err)
	}
}

// late is a configuration store whose first subscription waits until the test lets it succeed.
type late struct {
	configuration.Store
	begun, proceed chan struct{}
}

func (l *late) Subscribe(ctx context.Context, r configuration.SubscribeRequest) (configuration.Subscription, error) {
	if begun := l.begun; begun != nil {
		l.begun = nil
		close(begun)
		<-l.proceed
	}
	return l.Store.Subscribe(ctx, r)
}

// The second of two identical calls ends before the first one. Only the subscription that began to work last remains.
func TestConfigurations_ConcurrentIdenticalCallsLeaveOneSubscription(t *testing.T) {
	c := newConfigured(t)
	store := &late{c.world.Configurations.List[0].Store, make(chan struct{}), make(chan struct{})}
	begun := store.begun
	c.world.Configurations.List[0].Store = store
	first := make(chan string, 1)
	go func() {
		id, err := c.SubscribeCallback(t.Context(), configurations.Request{Store: "items", Keys: []string{"a"}})
		if err != nil {
			t.Error(err)
		}
		first <- id
	}()
	<-begun
	second := c.subscribe(t, "a")
	close(store.proceed)
	remaining := <-first
	if err := c.UnsubscribeCallback("items", second); codeOfError(err) != api.CodeConfigurationUnsubscribe {
		t.Errorf("the subscription that was replaced ends with %v", err)
	}
	if err := c.UnsubscribeCallback("items", remaining); err != nil {
		t.Error(err)
	}
}

// refusing is an application that does not take one value.
type refusing struct {
	value   string
	refused chan struct{}
	taken   chan string
}

func (r *refusing) Healthy() (bool, string) { return true, "" }

func (r *refusing) Notify(_ context.Context, _, _ string, body []byte) error {
	if strings.Contains(string(body), r.value) {
		select {
		case r.refused <- struct{}{}:
		default:
		}
		return errors.New("the application does not take this value")
	}
	r.taken <- string(body)
	return nil
}

// unlimited is a policy that retries without limit.
type unlimited struct{ apitest.NoPolicies }

func (unlimited) Inbound(string) *resiliency.Policy {
	return &resiliency.Policy{Retry: &resiliency.Retry{Pause: time.Hour, Max: -1}}
}

// The application never takes a value, and the policy would repeat it forever. The next value is sent nevertheless.
func TestConfigurations_NewerValueEndsTheRetriesOfAnOlderOne(t *testing.T) {
	w, app := apitest.New(t), &refusing{`"value":"bad"`, make(chan struct{}, 1), make(chan string, 1)}
	s := configurations.New(configurations.Options{App: w.App, Stores: w.Configurations,
		Policies: unlimited{}, Receiver: app, Metrics: configurations.NewMetrics(),
		Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(s.Close)
	c := configured{Service: s}
	c.subscribe(t, "a")
	c.set(t, "a", "bad")
	<-app.refused
	c.set(t, "a", "good")
	select {
	case body := <-app.taken:
		if !strings.Contains(body, `"value":"good"`) {
			t.Errorf("the application has taken %s", body)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the application did not get the newer value")
	}
}
