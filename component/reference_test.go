package component_test

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

// sources returns Sources with the environment env and a secret store with one secret. Every {uuid} is different.
func sources(env map[string]string) component.Sources {
	n := 0
	return component.Sources{
		Placeholders: component.Placeholders{
			UUID:    func() string { n++; return "uuid-" + strconv.Itoa(n) },
			PodName: "pod-0", Namespace: "prod", AppID: "shop",
		},
		Env: func(name string) (string, bool) {
			value, ok := env[name]
			return value, ok
		},
		Secret: func(_ context.Context, store string, ref component.SecretRef) (string, error) {
			if store != "vault" || ref.Name != "db" {
				return "", fault.New(fault.NotFound, "test", "no such secret")
			}
			return "{uuid} of " + ref.Key, nil
		},
	}
}

func TestResolve_ReferencesAndPlaceholders(t *testing.T) {
	spec := component.Spec{Name: "c", SecretStore: "vault", Metadata: []component.Item{
		{Name: "plain", Value: "{uuid} {podName} {namespace} {appID} {uuid} {other} {", Pos: at(1)},
		{Name: "secret", Secret: &component.SecretRef{Name: "db", Key: "k"}, Pos: at(2)},
		{Name: "env", Env: "DB_URL", Pos: at(3)},
		{Name: "emptyEnv", Env: "EMPTY", Pos: at(4)},
	}}
	got, err := spec.Resolve(t.Context(), sources(map[string]string{"DB_URL": "{appID}", "EMPTY": ""}))
	if err != nil {
		t.Fatal(err)
	}
	want := component.Metadata{
		{Name: "plain", Value: "uuid-1 pod-0 prod.shop shop uuid-2 {other} {", Pos: at(1)},
		{Name: "secret", Value: "{uuid} of k", Sensitive: true, Pos: at(2)},
		{Name: "env", Value: "{appID}", Sensitive: true, Pos: at(3)},
		{Name: "emptyEnv", Sensitive: true, Pos: at(4)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	open := component.Metadata{
		{Name: "plain", Value: spec.Metadata[0].Value, Unresolved: true, Pos: at(1)},
		{Name: "secret", Sensitive: true, Unresolved: true, Pos: at(2)},
		{Name: "env", Sensitive: true, Unresolved: true, Pos: at(3)},
		{Name: "emptyEnv", Sensitive: true, Unresolved: true, Pos: at(4)},
	}
	if diff := cmp.Diff(open, spec.Unresolved()); diff != "" {
		t.Errorf("unresolved (-want +got)\n%s", diff)
	}
}

func TestResolve_MissingReferenceNamesPlace(t *testing.T) {
	for name, c := range map[string]struct {
		store string
		item  component.Item
		code  fault.Code
		text  string
	}{
		"secret": {"vault", component.Item{Secret: &component.SecretRef{Name: "x", Key: "x"}}, fault.NotFound,
			"no such secret"},
		"no store named": {"", component.Item{Secret: &component.SecretRef{Name: "db", Key: "k"}}, fault.Invalid,
			"secretKeyRef is used but the component names no secret store (set auth.secretStore)"},
		"variable": {"", component.Item{Env: "NOPE"}, fault.NotFound, "the environment variable NOPE is not set"},
	} {
		c.item.Name, c.item.Pos = "url", at(7)
		spec := component.Spec{Name: "orders", SecretStore: c.store, Metadata: []component.Item{c.item}}
		_, err := spec.Resolve(t.Context(), sources(nil))
		if want := "f.yaml:7: component orders: metadata url: " + c.text; fault.Text(err) != want ||
			fault.CodeOf(err) != c.code || fault.KeyOf(err) != "orders" {
			t.Errorf("%s: %q with code %q, want %q", name, fault.Text(err), fault.CodeOf(err), want)
		}
	}
}

func TestResolve_RefusesReservedVariables(t *testing.T) {
	env := map[string]string{
		"APP_API_TOKEN": "x", "DAPR_API_TOKEN": "x", "dapr_any": "x", "QUORATE_CLUSTER_TOKEN": "x", "Dapr_": "x",
		"A B": "x", "A=B": "x", "OTHER": "x", "LISTED": "listed", "ALSO": "also",
	}
	read := func(name string) (string, error) {
		spec := component.Spec{Name: "c", Metadata: []component.Item{{Name: "v", Env: name}}}
		m, err := spec.Resolve(t.Context(), sources(env))
		if err != nil {
			return "", err
		}
		return m[0].Value, nil
	}
	for name, code := range map[string]fault.Code{
		"APP_API_TOKEN": fault.Denied, "DAPR_API_TOKEN": fault.Denied, "dapr_any": fault.Denied, "Dapr_": fault.Denied,
		"QUORATE_CLUSTER_TOKEN": fault.Denied, "A B": fault.Invalid, "A=B": fault.Invalid,
	} {
		if got, err := read(name); !fault.Is(err, code) {
			t.Errorf("envRef %q = %q, %v; want code %q", name, got, err, code)
		}
	}
	if got, err := read("OTHER"); got != "x" || err != nil {
		t.Errorf("without %s every other variable can be read; got %q, %v", component.EnvKeys, got, err)
	}
	for _, list := range []string{"listed ALSO", "LISTED,also", " Listed ,  Also "} {
		env[component.EnvKeys] = list
		for name, want := range map[string]string{"LISTED": "listed", "ALSO": "also"} {
			if got, err := read(name); got != want || err != nil {
				t.Errorf("list %q: envRef %q = %q, %v", list, name, got, err)
			}
		}
		if got, err := read("OTHER"); !fault.Is(err, fault.Denied) {
			t.Errorf("list %q: envRef OTHER = %q, %v; want it denied", list, got, err)
		}
	}
	env[component.EnvKeys] = ""
	if got, err := read("LISTED"); !fault.Is(err, fault.Denied) {
		t.Errorf("an empty list allows %q, %v", got, err)
	}
}

func TestReplace_PlaceholderWithoutValue(t *testing.T) {
	p := component.Placeholders{UUID: func() string { return "u" }}
	for _, text := range []string{"{podName}", "a {appID}", "{namespace}"} {
		if got, err := p.Replace(text); !fault.Is(err, fault.Invalid) {
			t.Errorf("Replace(%q) = %q, %v", text, got, err)
		}
	}
	p.AppID = "shop"
	if got, err := p.Replace("{namespace}"); got != "shop" || err != nil {
		t.Errorf("without a namespace {namespace} is %q, %v; want the app id", got, err)
	}
}

func TestReplace_ReplacesOnce(t *testing.T) {
	p := component.Placeholders{UUID: func() string { return "{appID}" }, AppID: "{uuid}", PodName: "p"}
	for text, want := range map[string]string{
		"": "", "{}": "{}", "{{uuid}}": "{{appID}}", "{UUID}": "{UUID}", "{appID}{appID}": "{uuid}{uuid}",
		"x{podName": "x{podName", "}{uuid": "}{uuid",
	} {
		if got, err := p.Replace(text); got != want || err != nil {
			t.Errorf("Replace(%q) = %q, %v; want %q", text, got, err, want)
		}
	}
}

func TestResolve_KeepsCauseOfFailedLookup(t *testing.T) {
	broken := errors.New("broken")
	from := sources(nil)
	from.Secret = func(context.Context, string, component.SecretRef) (string, error) { return "", broken }
	spec := component.Spec{Name: "c", SecretStore: "v",
		Metadata: []component.Item{{Name: "v", Secret: &component.SecretRef{}}}}
	if _, err := spec.Resolve(t.Context(), from); !errors.Is(err, broken) {
		t.Errorf("Resolve: %v", err)
	}
}
