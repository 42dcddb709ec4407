package loader_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

func TestOpen_OrderAndReverseClose(t *testing.T) {
	r := newRig()
	set := r.mustOpen(t,
		doc("b", "state.plain")+"---\n"+doc("a", "state.plain"),
		doc("vault2", "secretstores.fake", "token=secretKeyRef: {name: db}", "top auth: {secretStore: vault1}"),
		doc("c", "STATE.Fake", "url=value: x"),
		doc("vault1", "secretstores.fake"),
	)
	if err := set.Close(); err != nil {
		t.Fatal(err)
	}
	if err := set.Close(); err != nil {
		t.Fatal(err)
	}
	want := "open:vault1 open:vault2 open:b open:a open:c close:c close:a close:b close:vault2 close:vault1"
	if got := r.world.log(); got != want {
		t.Errorf("events are\n%s, want\n%s", got, want)
	}
}

func TestOpen_DoesNotWaitForPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(path)
	if _, err := r.open(t); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Open: %v", err)
	}
}

func TestOpen_ReadsPathsInOrder(t *testing.T) {
	second, first := t.TempDir(), t.TempDir()
	write(t, filepath.Join(second, "a.yaml"), doc("three", "state.plain"))
	write(t, filepath.Join(first, "b.yml"), doc("two", "state.plain"))
	write(t, filepath.Join(first, "a.YAML"), doc("one", "state.plain"))
	write(t, filepath.Join(first, "notes.txt"), "not: [yaml")
	write(t, filepath.Join(first, ".hidden.yaml"), "not: [yaml")
	write(t, filepath.Join(second, "single.conf"), doc("four", "state.plain"))
	if err := os.Mkdir(filepath.Join(first, "sub.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(first, "sub.yaml", "x.yaml"), "not: [yaml")
	mounted := t.TempDir()
	write(t, filepath.Join(mounted, "data"), doc("linked", "state.plain"))
	if err := os.Symlink(filepath.Join(mounted, "data"), filepath.Join(first, "z.yaml")); err != nil {
		t.Fatal(err)
	}
	r := newRig(first, second, filepath.Join(second, "single.conf"), first+"/")
	r.mustOpen(t)
	if got, want := r.world.log(), "open:one open:two open:linked open:three open:four"; got != want {
		t.Errorf("events are %s, want %s", got, want)
	}
	if logs := r.logs.String(); strings.Count(logs, "WARN") != 2 || !strings.Contains(logs, "notes.txt") ||
		!strings.Contains(logs, "single.conf") {
		t.Errorf("warnings are %s", logs)
	}
}

func TestOpen_FileGivenTwiceLoadsOnce(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	write(t, filepath.Join(dir, "store.yaml"), doc("vault", "secretstores.fake"))
	write(t, file, scopes("c", "[{storeName: vault, defaultAccess: deny}]"))
	link := filepath.Join(t.TempDir(), "same.yaml")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for _, files := range [][]string{{file}, {dir + "/./config.yaml"}, {link}, {file, link, file}} {
		r := newRig(dir)
		r.ConfigFiles = files
		set := r.mustOpen(t)
		documents := set.Documents(component.KindConfiguration)
		if i, ok := set.SecretStore("vault"); !ok || i.Scope == nil || len(documents) != 1 {
			t.Errorf("%q: the scope is lost, or there are %d configurations", files, len(documents))
		}
	}
	r := newRig(filepath.Join(dir, "store.yaml"))
	other := filepath.Join(t.TempDir(), "other.yaml")
	write(t, other, scopes("c", "[]"))
	r.ConfigFiles = []string{file, other} // Dapr merges configurations, even with different names
	if got := r.mustOpen(t).Documents(component.KindConfiguration); len(got) != 2 {
		t.Errorf("%d configurations, want 2", len(got))
	}
}

func TestOpen_ConfigFilesKeepTheirOrder(t *testing.T) {
	dir := t.TempDir()
	inside, outside := filepath.Join(dir, "inside.yaml"), filepath.Join(t.TempDir(), "outside.yaml")
	write(t, inside, scopes("inside", "[]")+"\n---\n"+doc("vault", "secretstores.fake"))
	write(t, outside, scopes("outside", "[]"))
	for _, files := range [][]string{{outside, inside}, {inside, outside}} {
		r := newRig(dir)
		r.ConfigFiles = files
		set := r.mustOpen(t)
		documents := set.Documents(component.KindConfiguration)
		if len(documents) != 2 || documents[0].Pos.File != files[0] || documents[1].Pos.File != files[1] {
			t.Errorf("%q: %v", files, documents)
		}
		if _, ok := set.SecretStore("vault"); !ok || strings.Contains(r.logs.String(), "skipped") {
			t.Errorf("%q: the other document of the file is not loaded: %s", files, r.logs.String())
		}
	}
}

func TestOpen_MissingPath(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "nowhere")
	_, err := loader.Open(t.Context(), newRig(missing).Options)
	if !fault.Is(err, fault.NotFound) || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("Open: %v", err)
	}
}

func TestOpen_ReportsProblemsOfAllFiles(t *testing.T) {
	r := newRig()
	_, err := r.open(t, "kind: [", doc("x", "state.plain", "colour: red"), "a: {")
	if !fault.Is(err, fault.Invalid) || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("Open: %v", err)
	}
	for _, place := range []string{"00.yaml:1: ", "01.yaml:7: ", "02.yaml:1: "} {
		if !strings.Contains(err.Error(), place) {
			t.Errorf("the error does not name %s: %v", place, err)
		}
	}
}

func TestOpen_IgnoresComponentsOfOtherApplications(t *testing.T) {
	r := newRig()
	set := r.mustOpen(t,
		doc("elsewhere", "state.fake", "top   namespace: test"),
		doc("orders", "no.such.type", "top scopes: [other, another]"),
		doc("orders", "state.plain", "top scopes: [other, app]"),
		doc("orders", "state.plain", "top scopes: [third]"),
		doc("here", "state.plain", "top   namespace: prod"),
		"apiVersion: a/v1alpha1\nkind: Configuration\nmetadata: {name: orders}\nscopes: [other]\n---\n"+
			"apiVersion: a/v1alpha1\nkind: Configuration\nmetadata: {name: orders}\nspec: {x: 1}\n---\n"+
			"apiVersion: a/v1alpha1\nkind: Resiliency\nmetadata: {name: orders}\n",
	)
	want := []component.Status{
		{Name: "orders", Type: "state.plain", Version: "v1", State: component.Ready, Capabilities: []string{"ETAG"}},
		{Name: "here", Type: "state.plain", Version: "v1", State: component.Ready, Capabilities: []string{"ETAG"}},
		{Name: "elsewhere", Type: "state.fake", Version: "v1", State: component.Ignored,
			Reason: "it belongs to namespace test, this node to prod"},
		{Name: "orders", Type: "no.such.type", Version: "v1", State: component.Ignored,
			Reason: "its scopes are other, another"},
		{Name: "orders", Type: "state.plain", Version: "v1", State: component.Ignored, Reason: "its scopes are third"},
	}
	if diff := cmp.Diff(want, set.Statuses(), cmpopts.IgnoreFields(component.Status{}, "Pos")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if n := len(set.Documents(component.KindConfiguration)); n != 1 {
		t.Errorf("%d Configurations, want 1", n)
	}
	if n := len(set.Documents(component.KindComponent)); n != 2 {
		t.Errorf("%d Components, want 2", n)
	}
	orders, ok := set.StateStore("orders")
	if !ok || !orders.VisibleTo("app") || !orders.VisibleTo("other") || orders.VisibleTo("third") {
		t.Errorf("orders is %+v, %v", orders, ok)
	}
	here, ok := set.StateStore("here")
	if !ok || !here.VisibleTo("third") {
		t.Errorf("here is %+v, %v", here, ok)
	}
	if _, ok := set.StateStore("elsewhere"); ok {
		t.Error("a store of another namespace was opened")
	}
}

func TestOpen_InstanceHasSettingsOfFile(t *testing.T) {
	r := newRig()
	set := r.mustOpen(t, doc("orders", "State.Fake", "version: V0", "url=envRef: DB_URL", "KEYPREFIX=value: Name",
		"defaultConsistency=value: STRONG",
		"defaultTTLInSeconds=value: 90", "maxValueSize=value: 2Mi", "actorStateStore=value: yes", "timeout=value: 7s"))
	got := set.StateStores()[0]
	prefix, err := state.ParseKeyPrefix("name")
	if err != nil {
		t.Fatal(err)
	}
	want := &state.Instance{
		Name: "orders", Type: "state.fake", Version: "V0", Namespace: "prod", KeyPrefix: prefix,
		DefaultConsistency: state.Strong,
		DefaultTTL:         90 * time.Second, MaxValueSize: 2 << 20, ActorStore: true,
		Features: []state.Feature{state.FeatureActorUnfenced, state.FeatureETag, state.FeatureTransactional},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(state.Instance{}, "Store"),
		cmp.AllowUnexported(state.KeyPrefix{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if state.AbilitiesOf(got.Store).Transactor == nil {
		t.Error("the wrapped store lost its transactions")
	}
	if state.AbilitiesOf(got.Store).Lister != nil {
		t.Error("the wrapped store pretends to list")
	}
	if actor, ok := set.ActorStore(); !ok || actor != got {
		t.Errorf("ActorStore() = %v, %v", actor, ok)
	}
	item, err := got.Store.Get(t.Context(), state.GetRequest{Key: "k"})
	if err != nil || string(item.Value) != state.Strong.String() {
		t.Errorf("a read that says nothing has level %q, %v; want the default of the component", item.Value, err)
	}
	seen := r.world.seen["orders"]
	if seen.Metadata.Text("url") != "from the environment" || seen.Metadata.Duration("timeout") != 7*time.Second ||
		seen.Namespace != "prod" || !seen.Settings.ActorStore || seen.Logger == nil {
		t.Errorf("the factory got %+v", seen)
	}
}

func TestOpen_InstrumentsStores(t *testing.T) {
	r, reg := newRig(), prometheus.NewRegistry()
	metrics, err := state.NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	r.Metrics = metrics
	set := r.mustOpen(t, doc("orders", "state.plain", "maxValueSize=value: 1"))
	orders, _ := set.StateStore("orders")
	tooLarge := state.SetRequest{Items: []state.Write{{Key: "k", Value: []byte("22")}}}
	if _, err := orders.Store.Set(t.Context(), tooLarge); !fault.Is(err, fault.TooLarge) {
		t.Fatalf("Set of a value over maxValueSize: %v", err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var found bool
	for _, f := range families {
		for _, m := range f.GetMetric() {
			text := m.String()
			found = found || f.GetName() == "quorate_state_requests_total" && strings.Contains(text, `"too_large"`) &&
				strings.Contains(text, `"orders"`)
		}
	}
	if !found {
		t.Errorf("the refusal was not counted: %v", families)
	}
}

func TestOpen_DefaultState(t *testing.T) {
	builtIn := &component.Spec{Name: "statestore", Type: "state.fake",
		Metadata: []component.Item{{Name: "url", Value: "x"}}}
	r := newRig()
	r.DefaultState = builtIn
	set := r.mustOpen(t, doc("vault", "secretstores.fake"), doc("orders", "state.plain", "top scopes: [other]"))
	actor, ok := set.ActorStore()
	if !ok || actor.Name != "statestore" || actor.Version != "v1" || len(set.StateStores()) != 1 {
		t.Errorf("the actor store is %+v, %v of %v", actor, ok, set.StateStores())
	}
	if builtIn.InitTimeout != 0 {
		t.Error("the caller's Spec was changed")
	}
	for _, declared := range []string{doc("orders", "state.plain"),
		doc("orders", "state.nothing", "ignoreErrors: true"), doc("orders", "state.fake", "ignoreErrors: true",
			"colour: red")} {
		r := newRig()
		r.DefaultState = builtIn
		set := r.mustOpen(t, declared)
		if _, ok := set.StateStore("statestore"); ok {
			t.Errorf("the default was opened beside\n%s", declared)
		}
		if _, ok := set.ActorStore(); ok {
			t.Errorf("a store has the actor state although none was configured:\n%s", declared)
		}
	}
}

func TestOpen_IgnoreErrors(t *testing.T) {
	vault := doc("vault", "secretstores.fake", "ignoreErrors: true", "fail=value: true")
	for name, c := range map[string]struct{ doc, reason string }{
		"unknown type": {doc("bad", "state.nothing", "ignoreErrors: true"),
			"the component type state.nothing is unknown"},
		"unknown block": {doc("bad", "pubsub.x", "ignoreErrors: true"),
			"the component type pubsub.x is unknown"},
		"unknown field": {doc("bad", "state.fake", "ignoreErrors: true", "colour: red"),
			`unknown field "colour"`},
		"bad metadata": {doc("bad", "state.fake", "ignoreErrors: true"), "metadata url is missing"},
		"missing secret store": {doc("bad", "state.fake", "ignoreErrors: true", "url=secretKeyRef: {name: x}",
			"top auth: {secretStore: nope}"), "there is no secret store nope"},
		"failed secret store": {doc("bad", "state.fake", "ignoreErrors: true", "url=secretKeyRef: {name: x}",
			"top auth: {secretStore: vault}"), "the secret store vault is not available: "},
		"does not open": {doc("bad", "state.fake", "ignoreErrors: true", "url=value: x", "fail=value: true"),
			"refused"},
		"no transactions": {doc("bad", "state.plain", "ignoreErrors: true", "actorStateStore=value: true"),
			"no transactions"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig()
			set := r.mustOpen(t, vault, c.doc, doc("good", "state.plain"))
			if _, ok := set.StateStore("good"); !ok {
				t.Error("the good store is missing")
			}
			if _, ok := set.StateStore("bad"); ok {
				t.Error("the bad store is offered")
			}
			var found bool
			for _, s := range set.Statuses() {
				found = found || s.Name == "bad" && s.State == component.Failed &&
					strings.Contains(s.Reason, c.reason) && strings.Contains(s.Reason, "01.yaml:")
			}
			if !found {
				t.Errorf("statuses are %+v, want a failure with %q", set.Statuses(), c.reason)
			}
			log, both := r.logs.String(), 2 // both vault and bad have failed
			if strings.Count(log, "it is not served") != both || !strings.Contains(log, "component=bad") {
				t.Errorf("the log is\n%s", log)
			}
		})
	}
}

func TestOpen_FailureClosesOpenedComponents(t *testing.T) {
	r := newRig()
	r.world.closeErr = map[string]error{"a": fault.New(fault.Internal, "fake.Close", "cannot close")}
	_, err := r.open(t, doc("a", "state.plain"), doc("v", "secretstores.fake"),
		doc("b", "state.fake", "url=value: x", "fail=value: true"), doc("c", "state.plain"))
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "component b (state.fake)") ||
		!strings.Contains(err.Error(), "cannot close") {
		t.Errorf("Open: %v with code %q", err, fault.CodeOf(err))
	}
	if got, want := r.world.log(), "open:v open:a open:b close:a close:v"; got != want {
		t.Errorf("events are %s, want %s", got, want)
	}
}

func TestClose_JoinsErrorsAndClosesAll(t *testing.T) {
	broken := errors.New("broken")
	r := newRig()
	r.world.closeErr = map[string]error{"a": broken, "c": fault.New(fault.Unavailable, "fake.Close", "busy")}
	set := r.mustOpen(t, doc("a", "state.plain"), doc("b", "state.plain"), doc("c", "state.plain"))
	for range 2 {
		err := set.Close()
		if !errors.Is(err, broken) || !fault.Is(err, fault.Unavailable) ||
			!strings.Contains(err.Error(), "closing component c: busy") ||
			!strings.Contains(err.Error(), "closing component a: broken") {
			t.Errorf("Close: %v", err)
		}
	}
	if got := r.world.log(); got != "open:a open:b open:c close:c close:b close:a" {
		t.Errorf("events are %s", got)
	}
}

func TestOpen_InitTimeout(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), doc("slow", "state.fake", "initTimeout: 90s", "url=value: x"))
	synctest.Test(t, func(t *testing.T) {
		r := newRig(dir)
		r.world.block = true
		start := time.Now()
		_, err := loader.Open(t.Context(), r.Options)
		if took := time.Since(start); took != 90*time.Second {
			t.Errorf("it took %v, want 90s", took)
		}
		if !fault.Is(err, fault.Timeout) || !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "within 1m30s") || !strings.Contains(err.Error(), "component slow") {
			t.Errorf("Open: %v with code %q", err, fault.CodeOf(err))
		}
	})
}

func TestOpen_CancelIsNeverIgnored(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), doc("slow", "state.fake", "ignoreErrors: true", "url=value: x"))
	r := newRig(dir)
	r.world.block = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := loader.Open(ctx, r.Options); !errors.Is(err, context.Canceled) {
		t.Errorf("Open: %v", err)
	}
}

func TestOpen_ActorStateFromReference(t *testing.T) {
	r := newRig()
	_, err := r.open(t, doc("vault", "secretstores.fake"),
		doc("a", "state.fake", "url=value: x", "actorStateStore=value: true"),
		doc("b", "state.fake", "url=value: x", "actorStateStore=secretKeyRef: {name: 'true'}",
			"top auth: {secretStore: vault}"))
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("Open: %v", err)
	}
	if got := r.world.log(); got != "open:vault close:vault" {
		t.Errorf("a store was opened before the rule was checked: %s", got)
	}
}

func TestOpen_DeniedSecretKeepsCode(t *testing.T) {
	r := newRig()
	_, err := r.open(t, doc("vault", "secretstores.fake"),
		doc("a", "state.fake", "url=secretKeyRef: {name: denied}", "top auth: {secretStore: vault}"))
	if !fault.Is(err, fault.Denied) ||
		!strings.Contains(err.Error(), `reading the secret "denied" from the secret store vault`) {
		t.Errorf("Open: %v", err)
	}
}

func TestOpen_SecretsReachOnlyFactory(t *testing.T) {
	r := newRig()
	set := r.mustOpen(t, doc("vault", "secretstores.fake"),
		doc("a", "state.fake", "url=secretKeyRef: {name: db, key: password}", "password=secretKeyRef: {name: db}",
			"top auth: {secretStore: vault}"))
	if got := r.world.seen["a"].Metadata.Text("url"); got != secret {
		t.Errorf("the factory got %q", got)
	}
	if store, ok := set.SecretStore("vault"); !ok || store == nil {
		t.Error("the secret store is not offered")
	}
	if s := set.Statuses()[0]; s.Name != "vault" ||
		!cmp.Equal(s.Capabilities, []string{"MULTIPLE_KEY_VALUES_PER_SECRET"}) {
		t.Errorf("status is %+v", s)
	}
}

func TestRead_ChecksWithoutOpening(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"),
		doc("a", "state.fake", "url=secretKeyRef: {name: nothing}", "typo=value: 1", "top auth: {secretStore: vault}"))
	write(t, filepath.Join(dir, "vault.yaml"), doc("vault", "secretstores.fake"))
	r := newRig(dir)
	plan, err := loader.Read(r.Options)
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Warnings) != 1 || !strings.Contains(plan.Warnings[0].String(), "a.yaml:") ||
		len(plan.Documents(component.KindComponent)) != 2 || r.world.log() != "" {
		t.Errorf("warnings %v, events %q", plan.Warnings, r.world.log())
	}
	write(t, filepath.Join(dir, "b.yaml"), doc("b", "state.fake"))
	if _, err := loader.Read(r.Options); err == nil || !strings.Contains(err.Error(), "metadata url is missing") {
		t.Errorf("Read: %v", err)
	}
}

func TestRead_FindsSecretStoresThatNoFileDeclares(t *testing.T) {
	r := newRig()
	_, err := r.open(t, doc("vault", "secretstores.fake"),
		doc("a", "state.fake", "url=secretKeyRef: {name: db}"),
		doc("b", "state.fake", "url=secretKeyRef: {name: db}", "top auth: {secretStore: vualt}"),
		doc("c", "state.fake", "url=secretKeyRef: {name: db}", "ignoreErrors: true"))
	want := []string{"01.yaml:8: component a: metadata url: secretKeyRef is used but the component names no secret " +
		"store (set auth.secretStore)", "02.yaml:9: component b: metadata url: there is no secret store vualt (there " +
		"is vault)"}
	var got []string
	for _, e := range loader.Each(err) {
		got = append(got, filepath.Base(fault.Text(e)))
	}
	if diff := cmp.Diff(want, got); diff != "" || r.world.log() != "" {
		t.Errorf("(-want +got)\n%s, events %q", diff, r.world.log())
	}
}

func TestOpenStateStore_DoesNotWarnOfActors(t *testing.T) {
	const warning = "does not check the owner of an actor"
	r := newRig()
	r.mustOpen(t, doc("a", "state.fake", "url=value: x", "actorStateStore=value: true"))
	if !strings.Contains(r.logs.String(), warning) {
		t.Errorf("a node does not warn: %s", r.logs)
	}
	r.logs.Reset()
	set, _, err := loader.OpenStateStore(t.Context(), r.Options, "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := set.Close(); err != nil || strings.Contains(r.logs.String(), warning) {
		t.Errorf("%v, %s", err, r.logs)
	}
}

func TestOpenStateStore_OpensNoOtherComponent(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	r := newRig(dir)
	r.Factories.Locks = map[string]loader.LockFactory{"lock.fake": {
		Open: func(context.Context, loader.LockConfig) (lock.Store, string, error) {
			return nil, "", fault.New(fault.Internal, "fake.Open", "opened")
		}}}
	write(t, file, doc("a", "lock.fake"))
	if _, _, err := loader.OpenStateStore(t.Context(), r.Options, "a"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a lock store: %v", err)
	}
	write(t, file, doc("a", "stat.fake"))
	if _, _, err := loader.OpenStateStore(t.Context(), r.Options, "a"); err == nil ||
		!strings.Contains(err.Error(), "stat.fake") {
		t.Errorf("a mistyped type: %v", err)
	}
}

func TestOpen_NamesMissingOptions(t *testing.T) {
	for name, strip := range map[string]func(*loader.Options){
		"Apps": func(o *loader.Options) { o.Apps = nil }, "Env": func(o *loader.Options) { o.Env = nil },
		"UUID": func(o *loader.Options) { o.UUID = nil }, "Logger": func(o *loader.Options) { o.Logger = nil },
	} {
		r := newRig()
		strip(&r.Options)
		if _, err := loader.Open(t.Context(), r.Options); !fault.Is(err, fault.Internal) ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

func TestOpen_PlaceholdersNeedOneApplication(t *testing.T) {
	text := doc("a", "state.fake", "url=value: '{uuid} {namespace} {appID}'")
	r := newRig()
	r.mustOpen(t, text)
	if got := r.world.seen["a"].Metadata.Text("url"); got != "0190-uuid prod.app app" {
		t.Errorf("url is %q", got)
	}
	r = newRig()
	r.Apps = []string{"app", "other"}
	if _, err := r.open(t, text); !fault.Is(err, fault.Invalid) ||
		!strings.Contains(err.Error(), "exactly one application") {
		t.Errorf("Open: %v", err)
	}
}

// As in Dapr, files of --config may name environment variables. In other files they are plain text.
func TestOpen_ConfigFilesReplaceEnvironmentVariables(t *testing.T) {
	const scope = "[{storeName: vault, defaultAccess: deny, allowedSecrets: [\"$DB_URL\"]}]"
	dir := t.TempDir()
	inside, config := filepath.Join(dir, "inside.yaml"), filepath.Join(t.TempDir(), "config.yaml")
	write(t, inside, doc("vault", "secretstores.fake"))
	write(t, config, scopes("c", scope))
	r := newRig(dir)
	r.ConfigFiles = []string{config}
	i, ok := r.mustOpen(t).SecretStore("vault")
	if !ok || !i.Scope.Allows("from the environment") || i.Scope.Allows("$DB_URL") {
		t.Error("the scope does not name the value of the variable")
	}
}
