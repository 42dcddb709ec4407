package loader_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/lock"
)

const reloadDoc = "apiVersion: x/v1alpha1\nkind: Component\nmetadata: {name: NAME}\nspec:\n  type: state.plain\n" +
	"  version: v1\n  metadata: [{name: keyPrefix, value: PREFIX}]\n"

func fakeDoc(name, prefix string) string {
	return strings.NewReplacer("NAME", name, "PREFIX", prefix).Replace(reloadDoc)
}

func reloadOptions(t *testing.T, dir string) loader.Options {
	t.Helper()
	w := &world{}
	return loader.Options{Paths: []string{dir}, Apps: []string{"shop"}, Factories: w.factories(),
		Env: func(string) (string, bool) { return "", false }, UUID: func() string { return "u" },
		Logger: slog.New(slog.DiscardHandler)}
}

func writeFile(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReload_AddsChangesRemovesAndKeeps(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "keep.yaml", fakeDoc("keep", "name"))
	writeFile(t, dir, "change.yaml", fakeDoc("change", "name"))
	writeFile(t, dir, "remove.yaml", fakeDoc("remove", "name"))
	o := reloadOptions(t, dir)
	old, err := loader.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	before := loader.Fingerprint([]string{dir})
	writeFile(t, dir, "change.yaml", fakeDoc("change", "none"))
	writeFile(t, dir, "add.yaml", fakeDoc("add", "none"))
	if err := os.Remove(filepath.Join(dir, "remove.yaml")); err != nil {
		t.Fatal(err)
	}
	if loader.Fingerprint([]string{dir}) == before {
		t.Error("the fingerprint did not change")
	}
	now, c, err := loader.Reload(t.Context(), o, old)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(c.Added, ",") != "state add" || strings.Join(c.Changed, ",") != "state change" ||
		strings.Join(c.Removed, ",") != "state remove" || len(c.Failed) > 0 || !c.Any() {
		t.Errorf("%+v", c)
	}
	kept, _ := old.StateStore("keep")
	if same, ok := now.StateStore("keep"); !ok || same != kept {
		t.Error("the store that did not change was opened again")
	}
	if s, ok := now.StateStore("change"); !ok || s.KeyPrefix.String() == "name" {
		t.Errorf("%v", s)
	}
	if _, ok := now.StateStore("remove"); ok {
		t.Error("the removed store is there")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	same, c, err := loader.Reload(t.Context(), o, now)
	if err != nil || c.Any() {
		t.Errorf("nothing changed: %+v %v", c, err)
	}
	if err := same.Close(); err != nil {
		t.Error(err)
	}
}

func TestReload_WrongFileChangesNothing(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "a.yaml", fakeDoc("a", "name"))
	o := reloadOptions(t, dir)
	old, err := loader.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	writeFile(t, dir, "b.yaml", fakeDoc("b", "name"))
	writeFile(t, dir, "a.yaml", "kind: [")
	if _, _, err := loader.Reload(t.Context(), o, old); err == nil || !strings.Contains(err.Error(), "a.yaml:1") {
		t.Errorf("%v", err)
	}
}

func TestReload_ComponentThatDoesNotOpenStaysAsItWas(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "a.yaml", fakeDoc("a", "name"))
	o := reloadOptions(t, dir)
	old, err := loader.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := old.StateStore("a")
	writeFile(t, dir, "a.yaml", "apiVersion: x/v1alpha1\nkind: Component\nmetadata: {name: a}\nspec:\n"+
		"  type: state.fake\n  version: v1\n  metadata: [{name: url, value: u}, {name: fail, value: \"true\"}]\n")
	writeFile(t, dir, "b.yaml", fakeDoc("b", "name"))
	now, c, err := loader.Reload(t.Context(), o, old)
	if err != nil || len(c.Failed) != 1 || strings.Join(c.Added, ",") != "state b" || len(c.Changed) > 0 {
		t.Fatalf("%+v %v", c, err)
	}
	if same, ok := now.StateStore("a"); !ok || same != before {
		t.Error("the store is not the one that was there")
	}
	if err := now.Close(); err != nil {
		t.Error(err)
	}
}

// As in Dapr, a reload removes a component with ignoreErrors that fails to open. It still opens the other components.
func TestReload_ComponentWithIgnoreErrorsThatDoesNotOpenIsRemoved(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "a.yaml", fakeDoc("a", "name"))
	o := reloadOptions(t, dir)
	old, err := loader.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	broken := "apiVersion: x/v1alpha1\nkind: Component\nmetadata: {name: a}\nspec:\n  type: state.fake\n" +
		"  ignoreErrors: true\n  version: v1\n  metadata: [{name: url, value: u}, {name: fail, value: \"true\"}]\n"
	writeFile(t, dir, "a.yaml", broken)
	writeFile(t, dir, "b.yaml", fakeDoc("b", "name"))
	now, c, err := loader.Reload(t.Context(), o, old)
	if err != nil || len(c.Failed) > 0 || len(c.Ignored) != 1 || strings.Join(c.Added, ",") != "state b" ||
		strings.Join(c.Removed, ",") != "state a" {
		t.Fatalf("%+v %v", c, err)
	}
	if _, ok := now.StateStore("a"); ok {
		t.Error("the store that failed is offered")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	writeFile(t, dir, "a.yaml", strings.Replace(broken, `"true"`, `"false"`, 1))
	fixed, c, err := loader.Reload(t.Context(), o, now)
	if err != nil || strings.Join(c.Added, ",") != "state a" || len(c.Ignored) > 0 {
		t.Fatalf("%+v %v", c, err)
	}
	if err := fixed.Close(); err != nil {
		t.Error(err)
	}
}

// A component with ignoreErrors stays if its document has not changed and only its secret cannot be read now.
func TestReload_UnchangedComponentWithIgnoreErrorsStays(t *testing.T) {
	dir := t.TempDir()
	vault := "apiVersion: x/v1alpha1\nkind: Component\nmetadata: {name: vault}\nspec:\n  type: secretstores.fake\n" +
		"  ignoreErrors: true\n  version: v1\n  metadata: [{name: fail, value: \"false\"}]\n"
	a := strings.NewReplacer("spec:", "auth: {secretStore: vault}\nspec:\n  ignoreErrors: true",
		"state.plain", "state.fake",
		"keyPrefix, value: name", "url, secretKeyRef: {name: db}").Replace(fakeDoc("a", "name"))
	writeFile(t, dir, "vault.yaml", vault)
	writeFile(t, dir, "a.yaml", a)
	o := reloadOptions(t, dir)
	old, err := loader.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if failed := old.Ignored(); len(failed) > 0 {
		t.Fatal(failed)
	}
	writeFile(t, dir, "a.yaml", "# The document has moved by one line.\n"+a)
	writeFile(t, dir, "vault.yaml", strings.Replace(vault, "false", "true", 1))
	now, c, err := loader.Reload(t.Context(), o, old)
	if err != nil || strings.Join(c.Removed, ",") != "secretstores vault" || len(c.Ignored) != 1 ||
		len(c.Failed) != 1 {
		t.Fatalf("%+v %v", c, err)
	}
	before, _ := old.StateStore("a")
	if same, ok := now.StateStore("a"); !ok || same != before {
		t.Error("the store that did not change is gone")
	}
	if err := now.Close(); err != nil {
		t.Error(err)
	}
}

// Whatever changes in the files, the store with the actor state keeps it until the node restarts. Each step is reloaded
// several times, as a node does.
func TestReload_ActorStateStays(t *testing.T) {
	actorDoc := func(name, typ, claim string) string {
		return doc(name, typ, "url=value: u", "actorStateStore=value: '"+claim+"'")
	}
	versioned := doc("a", "state.fake", "version: v2", "url=value: u", "actorStateStore=value: 'true'")
	const refused = "cannot move to another store while the node runs"
	for name, steps := range map[string][]struct {
		files  []string
		failed int
	}{
		"another store claims it": {{[]string{actorDoc("a", "state.fake", "true"),
			actorDoc("b", "state.fake", "true")}, 1}},
		"the claim moves": {{[]string{actorDoc("a", "state.fake", "false"), actorDoc("b", "state.fake", "true")}, 2}},
		"the claim moves in two steps": {{[]string{actorDoc("a", "state.fake", "false")}, 1},
			{[]string{actorDoc("a", "state.fake", "false"), actorDoc("b", "state.fake", "true")}, 2}},
		"the version changes":  {{[]string{versioned}, 1}},
		"the type changes":     {{[]string{actorDoc("a", "state.other", "true")}, 1}},
		"the store is gone":    {{[]string{doc("c", "state.plain")}, 1}},
		"the store is renamed": {{[]string{actorDoc("b", "state.fake", "true")}, 2}},
		"the name is taken":    {{[]string{doc("a", "pubsub.fake"), actorDoc("b", "state.fake", "true")}, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig()
			r.Factories.State["state.other"] = r.Factories.State["state.fake"]
			r.Factories.State["state.fake/v2"] = r.Factories.State["state.fake"]
			original := actorDoc("a", "state.fake", "true")
			set := r.mustOpen(t, original)
			before, _ := set.ActorStore()
			reload := func(want int) {
				t.Helper()
				next, c, err := loader.Reload(t.Context(), r.Options, set)
				if err != nil || len(c.Failed) != want || want > 0 && !strings.Contains(c.Failed[0].Error(), refused) {
					t.Fatalf("%+v %v", c, err)
				}
				if now, ok := next.ActorStore(); !ok || now != before {
					t.Errorf("the actor state is in %+v", now)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				set = next
			}
			for _, step := range steps {
				write(t, filepath.Join(r.Paths[0], "00.yaml"), strings.Join(step.files, "---\n"))
				for range 3 {
					reload(step.failed)
				}
			}
			write(t, filepath.Join(r.Paths[0], "00.yaml"), original)
			reload(0)
			if strings.Contains(r.world.log(), "close:a") {
				t.Error("the store with the actor state was closed")
			}
			if err := set.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A document of the store with the actor state that does not apply is in the error, and the store has one status.
func TestReload_ActorStateStaysWithARejectedDocument(t *testing.T) {
	actorDoc := func(lines ...string) string {
		return doc("a", "state.fake", append(lines, "url=value: u", "actorStateStore=value: 'true'")...)
	}
	for reason, text := range map[string]string{
		"its scopes are other":        actorDoc("top scopes: [other]"),
		"it belongs to namespace far": strings.Replace(actorDoc(), "name: a\n", "name: a\n  namespace: far\n", 1),
		"is not a duration":           actorDoc("ignoreErrors: true", "timeout=value: soon"),
	} {
		r := newRig()
		set := r.mustOpen(t, actorDoc())
		write(t, filepath.Join(r.Paths[0], "00.yaml"), text)
		next, c, err := loader.Reload(t.Context(), r.Options, set)
		if err != nil || len(c.Failed) != 1 || !strings.Contains(c.Failed[0].Error(), reason) {
			t.Fatalf("%s: %+v %v", reason, c, err)
		}
		if _, ok := next.ActorStore(); !ok || len(next.Statuses()) != 1 || next.Statuses()[0].State != component.Ready {
			t.Errorf("%s: %+v", reason, next.Statuses())
		}
		if err := next.Close(); err != nil {
			t.Error(err)
		}
	}
}

// If the store with the actor state fails with ignoreErrors, another store still cannot have the actor state.
func TestReload_ActorStateStaysWithItsFailedStore(t *testing.T) {
	r := newRig()
	actorDoc := func(name, fail string) string {
		return doc(name, "state.fake", "ignoreErrors: true", "url=value: u", "actorStateStore=value: 'true'",
			"fail=value: '"+fail+"'")
	}
	set := r.mustOpen(t, actorDoc("a", "false"))
	file := filepath.Join(r.Paths[0], "00.yaml")
	for _, one := range []struct {
		text   string
		failed int
		name   string
	}{
		{actorDoc("a", "true"), 0, ""},
		{actorDoc("a", "true") + "---\n" + actorDoc("b", "false"), 1, ""},
		{actorDoc("b", "false"), 1, ""},
		{actorDoc("a", "false"), 0, "a"},
	} {
		write(t, file, one.text)
		for range 2 {
			next, c, err := loader.Reload(t.Context(), r.Options, set)
			if err != nil || len(c.Failed) != one.failed {
				t.Fatalf("%+v %v", c, err)
			}
			if now, ok := next.ActorStore(); ok != (one.name != "") || ok && now.Name != one.name {
				t.Errorf("the actor state is in %+v", now)
			}
			set = next
		}
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
}

// The default state store stays while a file declares a store of its name that cannot replace it.
func TestReload_DefaultStateStoreOutlivesItsName(t *testing.T) {
	dir := t.TempDir()
	o := reloadOptions(t, dir)
	o.DefaultState = &component.Spec{Name: "statestore", Type: "state.fake",
		Metadata: []component.Item{{Name: "url", Value: "u"}}}
	set, err := loader.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := set.ActorStore()
	for _, declared := range []bool{true, false} {
		failed := 0
		if declared {
			failed = 1
			writeFile(t, dir, "a.yaml", doc("statestore", "state.plain"))
		} else if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			next, c, err := loader.Reload(t.Context(), o, set)
			if err != nil || len(c.Failed) != failed {
				t.Fatalf("declared %t: %+v %v", declared, c, err)
			}
			if now, ok := next.ActorStore(); !ok || now != before {
				t.Errorf("declared %t: the actor state is in %+v", declared, now)
			}
			set = next
		}
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
}

// A lock store that names no state store protects the only one. If that store is renamed, the lock store protects the
// renamed one.
func TestReload_LocksFollowStateStores(t *testing.T) {
	dir := t.TempDir()
	o := reloadOptions(t, dir)
	opened := 0
	open := func(_ context.Context, c loader.LockConfig) (lock.Store, string, error) {
		opened++
		return noLocks{}, c.StateStores[0].Name, nil
	}
	o.Factories.Locks = map[string]loader.LockFactory{
		"lock.fake":  {Open: open, Protects: true},
		"lock.other": {Open: open},
	}
	for _, typ := range []string{"lock.fake", "lock.other"} {
		writeFile(t, dir, typ+".yaml", strings.NewReplacer("NAME", typ, "state.plain", typ, "PREFIX", "name").
			Replace(reloadDoc))
	}
	writeFile(t, dir, "a.yaml", fakeDoc("orders", "name"))
	old, err := loader.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	same, c, err := loader.Reload(t.Context(), o, old)
	if err != nil || c.Any() || opened != 2 {
		t.Fatalf("nothing changed: %+v, %v, %d lock stores opened", c, err, opened)
	}
	writeFile(t, dir, "a.yaml", fakeDoc("carts", "name"))
	now, c, err := loader.Reload(t.Context(), o, same)
	if err != nil || strings.Join(c.Changed, ",") != "lock lock.fake" || opened != 3 {
		t.Errorf("%+v, %v, %d lock stores opened", c, err, opened)
	}
	if i, ok := now.LockStore("lock.fake"); !ok || i.StateStore != "carts" {
		t.Errorf("%+v", i)
	}
	if err := now.Close(); err != nil {
		t.Error(err)
	}
}

type noLocks struct{ lock.Store }

func (noLocks) Close() error { return nil }
