package component_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quorate/quorate/component"
)

func configuration(t testing.TB, spec string) component.Document {
	t.Helper()
	file, err := component.Parse("c.yaml",
		strings.NewReader("apiVersion: a/v1alpha1\nkind: Configuration\nmetadata: {name: c}\nspec: "+spec+"\n"))
	if err != nil || len(file.Documents) != 1 {
		t.Skip(err)
	}
	return file.Documents[0]
}

func TestSecretScopes_Parse(t *testing.T) {
	got, problems := configuration(t,
		"{secrets: {scopes: [{storeName: a, defaultAccess: DENY, allowedSecrets: [x, 007]}, {storeName: b, "+
			"deniedSecrets: [y]}, {storeName: c, defaultAccess: Allow}]}}").SecretScopes()
	want := []component.SecretScope{{Store: "a", DenyDefault: true, Allowed: []string{"x", "007"}},
		{Store: "b", Denied: []string{"y"}}, {Store: "c"}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(component.SecretScope{}, "Pos")); diff != "" ||
		len(problems) > 0 {
		t.Errorf("%v (-want +got)\n%s", problems, diff)
	}
	for _, spec := range []string{"{}", "{secrets: }", "{secrets: {scopes: }}", "{features: []}"} {
		if got, problems := configuration(t, spec).SecretScopes(); len(got)+len(problems) > 0 {
			t.Errorf("%s: %v, %v", spec, got, problems)
		}
	}
}

// For any document, SecretScopes returns no scope without a store.
func FuzzParseSecretScopes(f *testing.F) {
	f.Add("{secrets: {scopes: [{storeName: a, defaultAccess: deny}]}}")
	f.Add("{secrets: {scopes: [{storeName: a, deniedSecrets: a}]}}")
	f.Add("{secrets: [x]}")
	f.Fuzz(func(t *testing.T, spec string) {
		scopes, problems := configuration(t, spec).SecretScopes()
		for _, s := range scopes {
			if s.Store == "" {
				t.Fatalf("a scope for no store: %v, %v", scopes, problems)
			}
		}
	})
}
