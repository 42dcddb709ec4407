package builtin_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/builtin"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/pluggable/pluggabletest"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

const pluggableFiles = `apiVersion: dapr.io/v1alpha1
kind: Component
metadata: {name: vault}
spec: {type: secretstores.safe, version: v1}
---
apiVersion: dapr.io/v1alpha1
kind: Component
metadata: {name: orders}
spec:
  type: state.Redis-Like
  version: v1
  metadata:
  - {name: redisPassword, secretKeyRef: {name: db, key: password}}
  - {name: actorStateStore, value: "true"}
  - {name: keyPrefix, value: none}
auth: {secretStore: vault}
---
apiVersion: dapr.io/v1alpha1
kind: Component
metadata: {name: queue}
spec:
  type: bindings.queue
  version: v1
  metadata: [{name: direction, value: output}]
`

// pluggableOptions returns options of a loader with pluggable components, whose sockets are in folder.
func pluggableOptions(t *testing.T, folder, files string, logs io.Writer) loader.Options {
	t.Helper()
	path := filepath.Join(t.TempDir(), "components.yaml")
	testutil.Must(t, os.WriteFile(path, []byte(files), 0o600))
	o := options(t, path, logs)
	builtin.Pluggable{Folder: folder, MaxMessage: 1 << 20}.Add(o.Factories)
	return o
}

// TestPluggable_ComponentsOfFiles opens components of all blocks from files. One of them gets its password from
// another component.
func TestPluggable_ComponentsOfFiles(t *testing.T) {
	folder := pluggabletest.Folder(t)
	backing := inmemory.Open(inmemory.Options{})
	defer func() { testutil.Must(t, backing.Close()) }()
	pluggabletest.Start(t, folder, "safe", (&pluggabletest.Secrets{
		Secrets: map[string]map[string]string{"db": {"password": "hunter2"}}}).Register)
	store := pluggabletest.Start(t, folder, "redis-like", (&pluggabletest.State{Store: backing,
		Offers: []string{"ETAG", "TRANSACTIONAL"}}).Register)
	queue := pluggabletest.Start(t, folder, "queue", (&pluggabletest.Output{Operations: []string{"create"}}).Register)
	var logs testutil.Output
	set, err := loader.Open(t.Context(), pluggableOptions(t, folder, pluggableFiles, &logs))
	testutil.Must(t, err)
	defer func() { testutil.Must(t, set.Close()) }()
	i, ok := set.StateStore("orders")
	if !ok || !i.ActorStore || i.Type != "state.redis-like" || i.StoredKey("shop", "k") != "k" {
		t.Fatalf("the store is %+v", i)
	}
	testutil.Must(t, statetest.Set(t.Context(), i.Store, statetest.Put("k", "1")))
	statetest.WantValue(t, i.Store, "k", "1")
	if _, properties := store.Instances.Inits(); properties["redisPassword"] != "hunter2" {
		t.Errorf("the store got %v", properties)
	}
	b, ok := set.Binding("queue")
	if _, properties := queue.Instances.Inits(); !ok || !b.Sends() || properties["direction"] != "output" {
		t.Errorf("the binding is %+v", b)
	}
	if strings.Contains(logs.String(), "WARN") || strings.Contains(logs.String(), "hunter2") {
		t.Errorf("log: %s", &logs)
	}
	for _, s := range set.Statuses() {
		if s.Name == "orders" && !slices.Equal(s.Capabilities, []string{"ACTOR_UNFENCED", "ETAG", "TRANSACTIONAL"}) {
			t.Errorf("capabilities are %v", s.Capabilities)
		}
	}
}

// TestPluggable_MissingProcess opens a component whose process does not run. The loader returns an error that names
// the component, or reports the component as failed.
func TestPluggable_MissingProcess(t *testing.T) {
	files := strings.ReplaceAll(`apiVersion: dapr.io/v1alpha1
kind: Component
metadata: {name: orders}
spec: {type: state.rediss, version: v1, initTimeout: 500ms, ignoreErrors: IGNORE}
`, "IGNORE", "false")
	folder := pluggabletest.Folder(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := loader.Open(ctx, pluggableOptions(t, folder, files, io.Discard))
	if !fault.Is(err, fault.Unavailable) {
		t.Fatalf("%v with code %q", err, fault.CodeOf(err))
	}
	for _, want := range []string{"components.yaml:1: component orders (state.rediss)", "did you mean state.redis?",
		"there is no socket rediss.sock in " + folder} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
	}
	set, err := loader.Open(ctx, pluggableOptions(t, folder, strings.ReplaceAll(files, "false", "true"), io.Discard))
	testutil.Must(t, err)
	defer func() { testutil.Must(t, set.Close()) }()
	if s := set.Statuses(); len(s) != 1 || s[0].State != component.Failed ||
		!strings.Contains(s[0].Reason, "there is no socket rediss.sock") {
		t.Errorf("statuses are %+v", s)
	}
}

func TestPluggable_ExampleOfPage(t *testing.T) {
	example := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindStringSubmatch(page(t, pluggablePage))
	if example == nil {
		t.Fatal("the page has no example")
	}
	readable(t, pluggableOptions(t, t.TempDir(), example[1], io.Discard), "state.redis-like")
}
