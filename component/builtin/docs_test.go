package builtin_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/builtin"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/topics"
)

const (
	pages         = "../../docs/components"
	pluggablePage = "pluggable.md" // describes types that have no page of their own
)

// factories returns all types of a node. state.raft needs a node, so another store replaces it. lock.raft cannot be
// opened.
func factories(t *testing.T) loader.Factories {
	t.Helper()
	f, err := builtin.Factories(loader.Factories{State: map[string]loader.StateFactory{"state.raft": {
		Fields: builtin.HistoryFields(), Fenced: true,
		Open: func(context.Context, loader.StateConfig) (state.Store, error) {
			return inmemory.Open(inmemory.Options{}), nil
		},
	}}, Locks: map[string]loader.LockFactory{"lock.raft": {
		Fields: []component.Field{{Name: "stateStore"}, {Name: "reentrant", Kind: component.Bool}},
	}}, Configuration: map[string]loader.ConfigurationFactory{"configuration.raft": {
		Fields: loader.WrittenFields(),
	}}, PubSub: map[string]loader.PubSubFactory{"pubsub.raft": {Fields: topics.Fields()}}})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(pages, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func names(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(pages, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	return slices.DeleteFunc(files, func(name string) bool { return name == pluggablePage })
}

func options(t *testing.T, path string, warnings io.Writer) loader.Options {
	t.Helper()
	return loader.Options{
		Paths: []string{path}, Apps: []string{"shop"}, Namespace: "production", Factories: factories(t),
		Env:  func(name string) (string, bool) { return "000102030405060708090a0b0c0d0e0f", name == "ORDERS_KEY" },
		UUID: func() string { return "u" }, Logger: slog.New(slog.NewTextHandler(warnings, nil)),
	}
}

// withSecretStore adds a file with the secret store that the example names and another example declares.
func withSecretStore(t *testing.T, o loader.Options) loader.Options {
	t.Helper()
	text, err := os.ReadFile(o.Paths[0])
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`secretStore: (\w+)`).FindSubmatch(text)
	if named == nil {
		return o
	}
	path := filepath.Join(t.TempDir(), "secretstore.yaml")
	store := "apiVersion: quorate.dev/v1alpha1\nkind: Component\nmetadata: {name: " + string(named[1]) +
		"}\nspec: {type: secretstores.local.env, version: v1}\n"
	if err := os.WriteFile(path, []byte(store), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Paths = append(o.Paths, path)
	return o
}

func TestDocs_ExamplesLoad(t *testing.T) {
	block := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	for _, name := range names(t) {
		examples := block.FindAllStringSubmatch(page(t, name), -1)
		if len(examples) == 0 {
			t.Errorf("%s has no example", name)
		}
		for i, example := range examples {
			t.Run(fmt.Sprint(name, i), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "example.yaml")
				if err := os.WriteFile(path, []byte(example[1]), 0o600); err != nil {
					t.Fatal(err)
				}
				var warnings strings.Builder
				if typ := strings.TrimSuffix(name, ".md"); needsService(typ) {
					readable(t, withSecretStore(t, options(t, path, &warnings)), typ)
					return
				}
				set, err := loader.Open(t.Context(), options(t, path, &warnings))
				if err != nil {
					t.Fatal(err)
				}
				if len(set.StateStores()) == 0 || warnings.Len() > 0 {
					t.Errorf("stores %v, warnings %s", set.StateStores(), &warnings)
				}
				if want := strings.TrimSuffix(name, ".md"); name != "README.md" && set.StateStores()[0].Type != want {
					t.Errorf("the example shows %s, not %s", set.StateStores()[0].Type, want)
				}
				if err := set.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// needsService reports whether a component of the type cannot be opened alone.
func needsService(typ string) bool {
	return strings.HasPrefix(typ, "secretstores.") || strings.HasPrefix(typ, "bindings.") ||
		strings.HasPrefix(typ, "middleware.") || strings.HasPrefix(typ, "lock.") ||
		strings.HasPrefix(typ, "configuration.") || strings.HasPrefix(typ, "pubsub.") ||
		slices.Contains([]string{"state.redis", "state.postgresql", "state.mongodb", "state.azure.cosmosdb",
			"state.sqlserver"}, typ)
}

// pageOf returns the component type whose documentation page also describes typ. Versions and other names of a type
// share its page.
func pageOf(typ string) string {
	typ, _, _ = strings.Cut(typ, "/")
	switch typ {
	case "state.postgres", "configuration.postgres":
		return typ + "ql"
	}
	return typ
}

// readable checks an example without opening it, because opening needs a service.
func readable(t *testing.T, o loader.Options, typ string) {
	t.Helper()
	plan, err := loader.Read(o)
	if err != nil || len(plan.Warnings) > 0 {
		t.Fatal(err, plan)
	}
	documents := plan.Documents(component.KindComponent)
	if len(documents) > 0 && documents[0].Component.Type != typ {
		t.Errorf("the example shows %s, not %s", documents[0].Component.Type, typ)
	}
}

func TestDocs_EveryTypeHasPageAndIsListed(t *testing.T) {
	want := []string{"README.md"}
	readme := page(t, "README.md")
	f := factories(t)
	for _, typ := range slices.Concat(slices.Collect(maps.Keys(f.State)), slices.Collect(maps.Keys(f.SecretStores)),
		slices.Collect(maps.Keys(f.Bindings)), slices.Collect(maps.Keys(f.Middleware)),
		slices.Collect(maps.Keys(f.Locks)), slices.Collect(maps.Keys(f.Configuration)),
		slices.Collect(maps.Keys(f.PubSub))) {
		typ = pageOf(typ)
		if !slices.Contains(want, typ+".md") {
			want = append(want, typ+".md")
		}
		if !strings.Contains(readme, "[`"+typ+"`]("+typ+".md)") {
			t.Errorf("docs/components/README.md does not list %s", typ)
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, names(t)); diff != "" {
		t.Errorf("docs/components needs one page for each type (-want +got):\n%s", diff)
	}
}

func TestDocs_PagesNameMetadataOfType(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `([A-Za-z0-9_]+)`")
	declared := map[string][]component.Field{}
	for typ, factory := range factories(t).State {
		declared[typ] = append(loader.StateFields(), factory.Fields...)
	}
	for typ, fields := range declared { // a page lists what one of the versions has
		for i, field := range fields {
			if other := declared[typ+"/v2"]; field.Refused != "" && len(other) > i {
				declared[typ][i] = other[i]
			}
		}
	}
	maps.DeleteFunc(declared, func(typ string, _ []component.Field) bool { return typ != pageOf(typ) })
	for typ, factory := range factories(t).SecretStores {
		declared[typ] = factory.Fields
	}
	for typ, factory := range factories(t).Bindings {
		declared[typ] = factory.Fields // README.md has the fields that every binding has
	}
	for typ, factory := range factories(t).Middleware {
		declared[typ] = factory.Fields
	}
	for typ, factory := range factories(t).Configuration {
		declared[pageOf(typ)] = factory.Fields
	}
	for typ, factory := range factories(t).PubSub {
		declared[typ] = append(loader.PubSubFields(), factory.Fields...)
	}
	for typ, factory := range factories(t).Locks {
		declared[typ] = append(loader.LockFields(), factory.Fields...)
	}
	for typ, fields := range declared {
		var want []string
		for _, field := range fields {
			if field.Refused == "" {
				want = append(want, field.Name)
			}
		}
		_, table, _ := strings.Cut(page(t, typ+".md"), "\n## Metadata\n")
		table, _, _ = strings.Cut(table, "\n## ")
		var got []string
		for _, match := range row.FindAllStringSubmatch(table, -1) {
			got = append(got, match[1])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", typ, diff)
		}
	}
}

func TestFactories_NeverReplaceType(t *testing.T) {
	extra := loader.Factories{State: map[string]loader.StateFactory{inmemory.Type: {}}}
	if _, err := builtin.Factories(extra); !fault.Is(err, fault.Internal) ||
		!strings.Contains(err.Error(), inmemory.Type) {
		t.Errorf("Factories: %v", err)
	}
}

// Each example in deploy is the example of a page, with a comment before it.
func TestDocs_DeployExamplesMatchPages(t *testing.T) {
	const folder = "../../deploy/components/secrets"
	f := factories(t)
	paths := map[string]string{}
	for typ := range f.SecretStores {
		paths[typ] = filepath.Join(folder, strings.TrimPrefix(typ, "secretstores.")+".yaml")
	}
	for typ := range f.Bindings {
		paths[typ] = filepath.Join("../../deploy/components", strings.Replace(typ, ".", "/", 1)+".yaml")
	}
	for typ, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		_, example, _ := strings.Cut(string(text), "\n")
		if !strings.Contains(page(t, typ+".md"), "```yaml\n"+example+"```\n") {
			t.Errorf("%s is not the example of %s.md", path, typ)
		}
	}
	var warnings strings.Builder
	o := withSecretStore(t, options(t, filepath.Join(folder, "encrypted.yaml"), &warnings))
	if _, err := loader.Read(o); err != nil {
		t.Error(err)
	}
}
