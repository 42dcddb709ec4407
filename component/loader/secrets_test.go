package loader_test

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/internal/fault"
)

func scopes(name, list string, top ...string) string {
	return "apiVersion: a/v1alpha1\nkind: Configuration\nmetadata: {name: " + name + "}\n" + strings.Join(top, "\n") +
		"\nspec: {secrets: {scopes: " + list + "}}\n"
}

func TestOpen_SecretScopes(t *testing.T) {
	r := newRig()
	config := filepath.Join(t.TempDir(), "config.yaml")
	write(t, config, scopes("file",
		"[{storeName: two, defaultAccess: Deny, allowedSecrets: [a]}]")+"---\n"+doc("ignored", "state.plain"))
	r.ConfigFiles = []string{config}
	set := r.mustOpen(t, doc("one", "secretstores.fake"), doc("two", "secretstores.fake"),
		doc("three", "secretstores.fake", "top scopes: [app]"),
		doc("others", "secretstores.fake", "top scopes: [other]"),
		scopes("inline", "[{storeName: one, deniedSecrets: [db]}, {storeName: others}]"),
		scopes("others", "[{storeName: one, defaultAccess: deny}]", "scopes: [other]"))
	for name, want := range map[string]string{"one": "a", "two": "a", "three": "a db"} {
		i, ok := set.SecretStore(name)
		if !ok {
			t.Fatalf("no store %s", name)
		}
		var got []string
		for _, secret := range []string{"a", "db"} {
			if i.Scope.Allows(secret) {
				got = append(got, secret)
			}
		}
		if strings.Join(got, " ") != want || i.Type != "secretstores.fake" {
			t.Errorf("%s (%s) allows %v, want %s", name, i.Type, got, want)
		}
	}
	if three, _ := set.SecretStore("three"); three.VisibleTo("other") || !three.VisibleTo("app") {
		t.Error("the scopes of the component are lost")
	}
	if len(set.SecretStores()) != 3 || len(set.StateStores()) != 0 {
		t.Errorf("%d secret stores, %d state stores", len(set.SecretStores()), len(set.StateStores()))
	}
	if !strings.Contains(r.logs.String(), "config.yaml:7") || !strings.Contains(r.logs.String(), "--resources-path") {
		t.Errorf("a component in a file for configurations is passed over silently: %s", r.logs)
	}
}

func TestOpen_ScopeForUnknownStore(t *testing.T) {
	vault := doc("vault", "secretstores.fake")
	for name, documents := range map[string][]string{
		"case":    {vault, scopes("c", "[{storeName: Vault}]")},
		"letters": {vault, scopes("c", "[{storeName: vualt}]")},
		"one of two": {vault, doc("kubernetes", "secretstores.fake"),
			scopes("c", "[{storeName: vault}, {storeName: kubernets}]")},
	} {
		if _, err := newRig().open(t, documents...); !fault.Is(err, fault.Invalid) ||
			!strings.Contains(err.Error(), "which does not exist (did you mean ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, documents := range map[string][]string{
		"no store":      {scopes("c", "[{storeName: vault}]")},
		"another store": {doc("aws", "secretstores.fake"), scopes("c", "[{storeName: vault}]")},
		"a state store": {doc("vault", "state.plain"), scopes("c", "[{storeName: vault}]")},
		"both exist elsewhere": {doc("vault1", "secretstores.fake"),
			scopes("c", "[{storeName: vault1}, {storeName: vault2}]")},
	} {
		r := newRig()
		if _, err := r.open(t, documents...); err != nil || !strings.Contains(r.logs.String(), "level=WARN") ||
			!strings.Contains(r.logs.String(), "which this node does not have") {
			t.Errorf("%s: %v, logs %s", name, err, r.logs)
		}
	}
	r := newRig()
	r.ConfigFiles = []string{filepath.Join(t.TempDir(), "none.yaml")}
	if _, err := r.open(t); !fault.Is(err, fault.NotFound) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestRead_ReportsAllProblems(t *testing.T) {
	r := newRig()
	_, err := r.open(t, "kind: [", doc("a", "state.nothing"), doc("b", "state.fake"),
		doc("c", "state.fake", "url=value: x", "tsl=value: y"),
		doc("d", "state.plain")+"---\n"+doc("d", "state.plain"), doc("e", "state.plain",
			"actorStateStore=value: true"), doc("f", "state.plain", "actorStateStore=value: true"))
	for _, want := range []string{"00.yaml:1", "state.nothing is unknown", "component b: metadata url is missing",
		"metadata tsl", `"d" is declared twice`, `both say actorStateStore`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if n := len(loader.Each(err)); n != 6 {
		t.Errorf("%d problems, want 6: %q", n, loader.Each(err))
	}
}

func TestOpen_InstrumentsSecretStores(t *testing.T) {
	r, reg := newRig(), prometheus.NewRegistry()
	var err error
	if r.SecretMetrics, err = secretstores.NewMetrics(reg); err != nil {
		t.Fatal(err)
	}
	set := r.mustOpen(t, doc("vault", "secretstores.fake"),
		doc("orders", "state.fake", "url=value: x", "password=secretKeyRef: {name: db}",
			"top auth: {secretStore: vault}"))
	vault, _ := set.SecretStore("vault")
	if _, err := vault.Store.Get(t.Context(), "none", nil); !fault.Is(err, fault.NotFound) {
		t.Fatal(err)
	}
	if _, ok := vault.Store.(secretstores.Featurer); !ok {
		t.Error("the store lost its features")
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text string
	for _, f := range families {
		text += f.String()
	}
	for _, want := range []string{`value:"ok"`, `value:"not_found"`, `value:"vault"`, `value:"get"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if strings.Contains(text, "hunter2") || strings.Contains(text, "db") || strings.Contains(text, "none") {
		t.Errorf("the metrics name secrets: %s", text)
	}
}

// encrypting opens a store that encrypts the values in below. The test can read below directly.
func encrypting(t *testing.T, below state.Store, metadata ...string) (*loader.Set, error) {
	t.Helper()
	r := newRig()
	keys := map[string]string{"new": "000102030405060708090a0b0c0d0e0f", "old": "0f0e0d0c0b0a09080706050403020100",
		"bad": "hunter2", "none": ""}
	r.Factories.State["state.memory"] = loader.StateFactory{Open: func(context.Context,
		loader.StateConfig) (state.Store, error) {
		return below, nil
	}}
	r.Factories.SecretStores["secretstores.keys"] = loader.SecretStoreFactory{Open: func(context.Context,
		loader.SecretStoreConfig) (secretstores.Store, error) {
		return keyStore(keys), nil
	}}
	return r.open(t, doc("keys", "secretstores.keys"),
		doc("orders", "state.memory", append(metadata, "top auth: {secretStore: keys}")...))
}

type keyStore map[string]string

func (k keyStore) Get(_ context.Context, name string, _ map[string]string) (map[string]string, error) {
	return map[string]string{name: k[name]}, nil
}
func (k keyStore) Bulk(context.Context, map[string]string) (map[string]map[string]string, error) {
	return nil, nil
}
func (k keyStore) Close() error { return nil }

func TestOpen_EncryptionKeysByReference(t *testing.T) {
	below := inmemory.Open(inmemory.Options{})
	set, err := encrypting(t, below, "primaryEncryptionKey=secretKeyRef: {name: new}",
		"secondaryEncryptionKey=secretKeyRef: {name: old}", "maxValueSize=value: 9")
	if err != nil {
		t.Fatal(err)
	}
	orders, _ := set.StateStore("orders")
	write := func(value string) error {
		_, err := orders.Store.Set(t.Context(),
			state.SetRequest{Items: []state.Write{{Key: "app||k", Value: []byte(value)}}})
		return err
	}
	if err := write(`"hunter2"`); err != nil {
		t.Fatalf("maxValueSize counts the value, not what it becomes: %v", err)
	}
	if err := write(`"hunter2 "`); !fault.Is(err, fault.TooLarge) {
		t.Errorf("maxValueSize: %v", err)
	}
	raw, err := below.Get(t.Context(), state.GetRequest{Key: "app||k"})
	if err != nil || bytes.Contains(raw.Value, []byte("hunter2")) || !raw.Found() {
		t.Errorf("below lies %q, %v", raw.Value, err)
	}
	item, err := orders.Store.Get(t.Context(), state.GetRequest{Key: "app||k"})
	if err != nil || string(item.Value) != `"hunter2"` || len(orders.Features) != 5 {
		t.Errorf("%q, %v, %v", item.Value, orders.Features, err)
	}
}

func TestOpen_NeverWithoutRequestedEncryption(t *testing.T) {
	for name, metadata := range map[string][]string{
		"a bad key":       {"primaryEncryptionKey=secretKeyRef: {name: bad}"},
		"an empty key":    {"primaryEncryptionKey=secretKeyRef: {name: none}"},
		"only the second": {"secondaryEncryptionKey=secretKeyRef: {name: old}"},
		"an empty second": {"primaryEncryptionKey=secretKeyRef: {name: new}",
			"secondaryEncryptionKey=secretKeyRef: {name: none}"},
		"written out": {"primaryEncryptionKey=value: 000102030405060708090a0b0c0d0e0f"},
		"misspelt":    {"primaryEncriptionKey=secretKeyRef: {name: new}"},
	} {
		below := inmemory.Open(inmemory.Options{})
		if _, err := encrypting(t, below, metadata...); !fault.Is(err, fault.Invalid) ||
			!strings.Contains(err.Error(), "orders") {
			t.Errorf("%s: %v", name, err)
		}
		_ = below.Close()
	}
}
