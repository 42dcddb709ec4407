package loader_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// secret is the value in the fake secret store. It must not appear in any log or error.
const secret = `hunter2 "and" more/&`

// world has fake component types, and records the calls of their stores.
type world struct {
	mu     sync.Mutex // guards events, seen
	events []string
	seen   map[string]loader.StateConfig

	closeErr map[string]error
	block    bool // state.fake opens only when its context ends
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf(format, args...))
}

func (w *world) log() string { return strings.Join(w.events, " ") }

func (w *world) factories() loader.Factories {
	w.seen = map[string]loader.StateConfig{}
	return loader.Factories{
		State: map[string]loader.StateFactory{
			"state.fake": {Open: w.openState, Fields: []component.Field{
				{Name: "url", Required: true, Aliases: []string{"address"}},
				{Name: "timeout", Kind: component.Duration, Default: "3s"},
				{Name: "retries", Kind: component.Int},
				{Name: "cache", Kind: component.Size},
				{Name: "tls", Kind: component.Bool, Security: true},
				{Name: "password", Secret: true},
				{Name: "fail", Kind: component.Bool},
			}},
			"state.plain": {Open: func(_ context.Context, c loader.StateConfig) (state.Store, error) {
				w.note("open:%s", c.Name)
				return &plainStore{world: w, name: c.Name}, nil
			}},
		},
		PubSub: map[string]loader.PubSubFactory{"pubsub.fake": {Open: openPubSub, Volatile: true}},
		SecretStores: map[string]loader.SecretStoreFactory{
			"secretstores.fake": {Open: w.openSecrets,
				Fields: []component.Field{{Name: "token", Secret: true}, {Name: "fail", Kind: component.Bool}}},
		},
	}
}

func (w *world) openState(ctx context.Context, c loader.StateConfig) (state.Store, error) {
	if w.block {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	w.note("open:%s", c.Name)
	w.seen[c.Name] = c
	if c.Metadata.Bool("fail") {
		return nil, fault.New(fault.Unavailable, "fake.Open",
			fmt.Sprintf("dialling %s: %q refused", c.Metadata.Text("url"), c.Metadata.Text("url")))
	}
	return &fakeStore{plainStore{world: w, name: c.Name}}, nil
}

func (w *world) openSecrets(_ context.Context, c loader.SecretStoreConfig) (secretstores.Store, error) {
	w.note("open:%s", c.Name)
	if c.Metadata.Bool("fail") {
		return nil, fault.New(fault.Unavailable, "fake.Open", "cannot be reached")
	}
	return &fakeSecrets{world: w, name: c.Name}, nil
}

// plainStore is a store without abilities.
type plainStore struct {
	world *world
	name  string
}

func (p *plainStore) Get(_ context.Context, r state.GetRequest) (state.Item, error) {
	return state.Item{Key: r.Key, Value: []byte(fmt.Sprint(r.Consistency)), ETag: "1"}, nil
}

func (p *plainStore) Set(context.Context, state.SetRequest) (state.Written, error) {
	return state.Written{}, nil
}

func (p *plainStore) Delete(context.Context, state.DeleteRequest) (state.Written, error) {
	return state.Written{}, nil
}

func (p *plainStore) Close() error {
	p.world.note("close:%s", p.name)
	return p.world.closeErr[p.name]
}

// fakeStore has transactions.
type fakeStore struct{ plainStore }

func (f *fakeStore) Transact(context.Context, state.TransactRequest) (state.Written, error) {
	return state.Written{}, nil
}

type fakeSecrets struct {
	world *world
	name  string
}

func (f *fakeSecrets) Get(_ context.Context, name string, _ map[string]string) (map[string]string, error) {
	switch name {
	case "db":
		return map[string]string{"password": secret, "db": secret}, nil
	case "true":
		return map[string]string{"true": "true"}, nil
	case "denied":
		return nil, fault.New(fault.Denied, "fake.Get", "the credentials are not accepted")
	}
	return nil, fault.New(fault.NotFound, "fake.Get", "no such secret")
}

func (f *fakeSecrets) Bulk(context.Context, map[string]string) (map[string]map[string]string, error) {
	return nil, nil
}

func (f *fakeSecrets) Features() []secretstores.Feature {
	return []secretstores.Feature{secretstores.FeatureMultipleKeyValues}
}

func (f *fakeSecrets) Close() error {
	f.world.note("close:%s", f.name)
	return f.world.closeErr[f.name]
}

// rig is a loader under test.
type rig struct {
	loader.Options
	world *world
	logs  *bytes.Buffer
}

func newRig(paths ...string) *rig {
	w, logs := &world{}, &bytes.Buffer{}
	env := map[string]string{"DB_URL": "from the environment", "DAPR_API_TOKEN": "t0ken"}
	return &rig{world: w, logs: logs, Options: loader.Options{
		Paths: paths, Apps: []string{"app"}, Namespace: "prod", Factories: w.factories(),
		Env: func(name string) (string, bool) {
			value, ok := env[name]
			return value, ok
		},
		UUID:   func() string { return "0190-uuid" },
		Logger: slog.New(slog.NewTextHandler(logs, nil)),
	}}
}

// open opens the documents, each in a file of its own. The set is closed at the end of the test.
func (r *rig) open(t *testing.T, documents ...string) (*loader.Set, error) {
	t.Helper()
	dir := t.TempDir()
	for i, doc := range documents {
		write(t, filepath.Join(dir, fmt.Sprintf("%02d.yaml", i)), doc)
	}
	r.Paths = append(r.Paths, dir)
	set, err := loader.Open(t.Context(), r.Options)
	if err == nil {
		t.Cleanup(func() { set.Close() }) //nolint:errcheck // tests that care close themselves
	}
	if strings.Contains(r.logs.String(), "hunter2") || err != nil && strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a secret is shown: %v\n%s", err, r.logs)
	}
	return set, err
}

func (r *rig) mustOpen(t *testing.T, documents ...string) *loader.Set {
	t.Helper()
	set, err := r.open(t, documents...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// doc returns a component document. lines are added below spec, with their indentation.
func doc(name, typ string, lines ...string) string {
	top := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "top ") })
	text := "apiVersion: quorate.dev/v1alpha1\nkind: Component\nmetadata:\n  name: " + name + "\n"
	if top >= 0 {
		text += strings.TrimPrefix(lines[top], "top ") + "\n"
		lines = slices.Delete(slices.Clone(lines), top, top+1)
	}
	text += "spec:\n  type: " + typ + "\n"
	var metadata string
	for _, line := range lines {
		if key, value, ok := strings.Cut(line, "="); ok {
			metadata += "  - name: " + key + "\n    " + value + "\n"
			continue
		}
		text += "  " + line + "\n"
	}
	if metadata != "" {
		text += "  metadata:\n" + metadata
	}
	return text
}
