package component_test

import (
	"errors"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

const full = `# a comment first
apiVersion: quorate.dev/v1alpha1
kind: Component
metadata:
  name: orders
  namespace: prod
  labels: {team: a, any: [thing, {at: all}]}
  annotations:
    note: text
auth:
  secretStore: vault
scopes:
- shop
- till
spec:
  type: state.raft
  version: V1
  ignoreErrors: true
  initTimeout: 1m30s
  metadata:
  - name: plain
    value: text
  - name: secret
    secretKeyRef:
      name: db
      key: password
  - name: shortSecret
    secretKeyRef: {name: db}
  - name: fromEnv
    envRef: DB_URL
`

func parse(t *testing.T, text string) component.File {
	t.Helper()
	file, err := component.Parse("f.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestParse_ByteOrderMarksAndVersionDirectives(t *testing.T) {
	doc := func(name string) string {
		return "apiVersion: quorate.dev/v1alpha1\nkind: Component\nmetadata:\n  name: " + name +
			"\nspec:\n  type: state.in-memory\n  version: v1\n"
	}
	const mark = "\ufeff"
	for _, text := range []string{
		mark + doc("a") + "---\n" + mark + doc("b"),
		doc("a") + mark + "---\n" + doc("b"),
		"---\n" + mark + "# comment\n" + doc("a") + "---\n" + doc("b"),
		"%YAML 1.2\n---\n" + doc("a") + "...\n%YAML 1.2\n---\n" + doc("b"),
		mark + "%YAML 1.2\n---\n" + doc("a") + "---\n" + doc("b"),
	} {
		file := parse(t, text)
		if len(file.Documents) != 2 || file.Documents[0].Name != "a" || file.Documents[1].Name != "b" {
			t.Errorf("%q: %+v", text, file)
		}
	}
}

func at(line int) component.Pos { return component.Pos{File: "f.yaml", Line: line} }

func TestParse_ComponentWithLines(t *testing.T) {
	file := parse(t, full)
	if len(file.Documents) != 1 || len(file.Skipped) != 0 {
		t.Fatalf("read %+v", file)
	}
	want := component.Document{
		Kind: component.KindComponent, APIVersion: "quorate.dev/v1alpha1", Name: "orders", Namespace: "prod",
		Scopes: []string{"shop", "till"}, Pos: at(2),
		Component: &component.Spec{
			Name: "orders", Namespace: "prod", Type: "state.raft", Version: "V1", Scopes: []string{"shop", "till"},
			SecretStore: "vault", IgnoreErrors: true, InitTimeout: 90 * time.Second, Pos: at(2), TypePos: at(16),
			Metadata: []component.Item{
				{Name: "plain", Value: "text", Pos: at(21)},
				{Name: "secret", Secret: &component.SecretRef{Name: "db", Key: "password"}, Pos: at(23)},
				{Name: "shortSecret", Secret: &component.SecretRef{Name: "db", Key: "db"}, Pos: at(27)},
				{Name: "fromEnv", Env: "DB_URL", Pos: at(29)},
			},
		},
	}
	if diff := cmp.Diff(want, file.Documents[0], cmpopts.IgnoreFields(component.Document{}, "Body")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestParse_KubernetesExport(t *testing.T) {
	file := parse(t, `apiVersion: dapr.io/v1alpha1
kind: Component
metadata:
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
  creationTimestamp: "2026-01-02T03:04:05Z"
  finalizers: [a.example/b]
  generation: 3
  managedFields:
  - {manager: kubectl, operation: Update}
  name: orders
  namespace: prod
  ownerReferences: [{kind: Any}]
  resourceVersion: "4711"
  selfLink: /apis/x
  uid: 0b7c
spec:
  type: state.raft
  version: v1
  metadata:
  - name: keyPrefix
    value: name
    secretKeyRef: {key: "", name: ""}
  - name: other
    envRef: ""
    secretKeyRef:
      name: db
      key: password
  - name: third
    value: ""
    secretKeyRef: {}
status: {conditions: []}
`)
	spec := file.Documents[0].Component
	if len(file.Skipped) > 0 || spec.Name != "orders" || spec.Namespace != "prod" {
		t.Errorf("skipped %v, component %+v", file.Skipped, spec)
	}
	var got []string
	for _, i := range spec.Metadata {
		text := i.Name + "=" + i.Value
		if i.Secret != nil {
			text += "secret " + i.Secret.Name + "/" + i.Secret.Key
		}
		got = append(got, text)
	}
	if diff := cmp.Diff([]string{"keyPrefix=name", "other=secret db/password", "third="}, got); diff != "" {
		t.Error(diff)
	}
}

func TestParse_Defaults(t *testing.T) {
	spec := parse(t, "apiVersion: a/v1alpha1\nkind: Component\nmetadata: {name: x}\nspec: {type: state.raft, "+
		"version: , metadata: , initTimeout: }\nscopes:\n").Documents[0].Component
	if spec.Version != "v1" || spec.InitTimeout != 5*time.Second || spec.IgnoreErrors || spec.Metadata != nil ||
		spec.Scopes != nil {
		t.Errorf("read %+v", spec)
	}
}

func TestParse_ValueKeepsText(t *testing.T) {
	for written, want := range map[string]string{
		"007": "007", "1.0": "1.0", "yes": "yes", "True": "True", "0x1F": "0x1F", "1_000": "1_000", ".inf": ".inf",
		"2030-01-02": "2030-01-02", "12345678901234567890": "12345678901234567890", "1e400": "1e400", "~": "", "": "",
		"null":   "",
		`"null"`: "null", `""`: "", `"a\tb"`: "a\tb", "'it''s'": "it's",
		"plain text # comment": "plain text", "!!str 1": "1",
		"|\n      two\n      lines\n": "two\nlines\n", ">-\n      folded\n      lines": "folded lines",
		"{z: 1, a: [true, ~, 007, 1.50, 0x1f, \"x\\\"<&>\"], \"b c\": {}}": `{"z":1,"a":[true,null,"007",1.50,` +
			`"0x1f","x\"\u003c\u0026\u003e"],"b c":{}}`,
		"[1, -2.5e-7, 12345678901234567890123, .nan, yes, 2030-01-02]": `[1,-2.5e-7,12345678901234567890123,` +
			`".nan","yes","2030-01-02"]`,
		"\n      k:\n      - 1": `{"k":[1]}`,
	} {
		text := "apiVersion: a/v1alpha1\nkind: Component\nmetadata: {name: x}\nspec:\n  type: t.t\n  metadata:\n  " +
			"- name: v\n    value: " + written + "\n"
		if got := parse(t, text).Documents[0].Component.Metadata[0].Value; got != want {
			t.Errorf("value %q was read as %q, want %q", written, got, want)
		}
	}
}

func TestParse_ManyDocumentsOrNone(t *testing.T) {
	one := "apiVersion: a/v1alpha1\nkind: Configuration\nmetadata: {name: c}\nspec: {any: {thing: 1}, other: " +
		"[x]}\nextra: 1\n"
	for name, c := range map[string]struct {
		text string
		want int
	}{
		"nothing":             {"", 0},
		"white space":         {" \n\n", 0},
		"comments":            {"# one\n# two\n", 0},
		"separators":          {"---\n---\n# c\n---\n", 0},
		"null":                {"---\nnull\n---\n~\n", 0},
		"byte order mark":     {"\ufeff" + one, 1},
		"CRLF":                {strings.ReplaceAll(one+"---\n"+one, "\n", "\r\n"), 2},
		"empty ones between":  {"---\n" + one + "---\n---\n# c\n---\n" + one + "...\n---\n", 2},
		"no newline at end":   {strings.TrimSuffix(one, "\n"), 1},
		"separator with text": {"--- # first\n" + one, 1},
	} {
		file := parse(t, c.text)
		if len(file.Documents) != c.want || len(file.Skipped) != 0 {
			t.Errorf("%s: read %d documents, skipped %v; want %d", name, len(file.Documents), file.Skipped, c.want)
		}
	}
}

func TestParse_SkipsForeignDocuments(t *testing.T) {
	file := parse(t, `apiVersion: apps/v1
kind: Deployment
metadata: {name: x}
spec: {unknown: {to: us}, unknown: twice}
---
apiVersion: core.oam.dev/v1beta1
kind: Component
---
services: {web: {}}
---
- a list
---
text
---
apiVersion: other.io/v1alpha1
kind: Subscription
---
apiVersion: a/v1alpha1
kind: Resiliency
metadata: {name: r}
`)
	var got []string
	for _, p := range file.Skipped {
		got = append(got, p.String())
	}
	kinds := "Component, Configuration, HTTPEndpoint, Resiliency, Subscription"
	want := []string{
		`f.yaml:1: skipped: kind "Deployment" is not one of ` + kinds,
		"f.yaml:6: skipped: apiVersion core.oam.dev/v1beta1 of kind Component is not <group>/v1alpha1",
		"f.yaml:9: skipped: the document has no kind",
		"f.yaml:11: skipped: the document is not a mapping",
		"f.yaml:13: skipped: the document is not a mapping",
		"f.yaml:15: skipped: apiVersion other.io/v1alpha1 of kind Subscription is not dapr.io/v1alpha1 or " +
			"dapr.io/v2alpha1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(file.Documents) != 1 || file.Documents[0].Kind != component.KindResiliency ||
		file.Documents[0].Pos != at(18) {
		t.Errorf("read %+v", file.Documents)
	}
}

func TestParse_ExpandsAliasesWithinBounds(t *testing.T) {
	file := parse(t, "apiVersion: a/v1alpha1\nkind: Component\nmetadata: {name: &n x}\nspec:\n  type: t.t\n  "+
		"metadata:\n"+
		"  - name: a\n    value: &v {k: [1, 2]}\n  - {name: b, value: *v}\n  - {name: c, value: [*v, *n]}\n")
	var got []string
	for _, item := range file.Documents[0].Component.Metadata {
		got = append(got, item.Value)
	}
	if diff := cmp.Diff([]string{`{"k":[1,2]}`, `{"k":[1,2]}`, `[{"k":[1,2]},"x"]`}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	walk(t, file.Documents[0].Body)
}

func walk(t *testing.T, n *yaml.Node) {
	t.Helper()
	if n.Kind == yaml.AliasNode {
		t.Errorf("line %d: the body still has an alias", n.Line)
	}
	for _, c := range n.Content {
		walk(t, c)
	}
}

func TestParse_RefusesHugeAndDeepFiles(t *testing.T) {
	head := "apiVersion: a/v1alpha1\nkind: Configuration\nmetadata: {name: x}\n"
	bomb := head + "a: &a [x,x,x,x,x,x,x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'h'; c++ {
		bomb += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 9) + "*" + string(c-1) +
			"]\n"
	}
	wide := head + "a: &a [" + strings.Repeat("x,", 5000) + "x]\nb: [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
	for name, text := range map[string]string{
		"too large": "# " + strings.Repeat("x", component.MaxFileSize),
		"too deep":  head + "a: " + strings.Repeat("[", 100) + strings.Repeat("]", 100),
		"bomb":      bomb,
		"wide":      wide,
		"circle":    head + "a: &a {b: *a}\n",
	} {
		_, err := component.Parse("f.yaml", strings.NewReader(text))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "limit") &&
			!strings.Contains(err.Error(), "more than") {
			t.Errorf("%s: %v, want a refusal that names the limit", name, err)
		}
	}
}

func TestParse_ReportsReadError(t *testing.T) {
	broken := errors.New("the disk is gone")
	if _, err := component.Parse("f.yaml", iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("Parse: %v, want %v", err, broken)
	}
}

func TestParse_IgnoreErrorsMarksComponent(t *testing.T) {
	file := parse(t, "apiVersion: a/v1alpha1\nkind: Component\nmetadata: {name: x}\nspec:\n  type: state.raft\n  "+
		"ignoreErrors: true\n  colour: red\n")
	doc := file.Documents[0]
	if !fault.Is(doc.Err, fault.Invalid) ||
		!strings.Contains(doc.Err.Error(), `f.yaml:7: component x: unknown field "colour"`) {
		t.Errorf("Err is %v", doc.Err)
	}
}

func TestDocument_ScopeAndNamespace(t *testing.T) {
	for _, c := range []struct {
		scopes, apps []string
		want         bool
	}{
		{nil, []string{"a"}, true}, {[]string{"a"}, []string{"a"}, true}, {[]string{"b", "a"}, []string{"x", "a"},
			true},
		{[]string{"A"}, []string{"a"}, false}, {[]string{"b"}, []string{"a"}, false}, {[]string{"b"}, nil, false},
	} {
		if got := (component.Document{Scopes: c.scopes}).InScope(c.apps); got != c.want {
			t.Errorf("scopes %v, apps %v: %v, want %v", c.scopes, c.apps, got, c.want)
		}
	}
	for _, c := range []struct {
		document, node string
		want           bool
	}{{"", "", true}, {"a", "", true}, {"", "a", true}, {"a", "a", true}, {"a", "b", false}, {"A", "a", false}} {
		if got := (component.Document{Namespace: c.document}).InNamespace(c.node); got != c.want {
			t.Errorf("document in %q, node in %q: %v, want %v", c.document, c.node, got, c.want)
		}
	}
}

func TestSameTypeAndVersion(t *testing.T) {
	if !component.SameType("State.Raft", "state.raft") || component.SameType("state.raft", "state.raf") {
		t.Error("types must compare without case")
	}
	for _, same := range [][2]string{{"", "v1"}, {"v0", "V1"}, {"v0", ""}, {"V2", "v2"}} {
		if !component.SameVersion(same[0], same[1]) {
			t.Errorf("versions %q and %q must be one", same[0], same[1])
		}
	}
	for _, other := range [][2]string{{"", "v2"}, {"v1", "1"}, {"v1", "v1.0"}} {
		if component.SameVersion(other[0], other[1]) {
			t.Errorf("versions %q and %q must differ", other[0], other[1])
		}
	}
}

func TestParse_RefusesNamesInvalidInPaths(t *testing.T) {
	for _, name := range []string{".", "..", "a/b", "a%62", "a|b", `"a b"`, `"a\nb"`, strings.Repeat("x", 254)} {
		text := "apiVersion: a/v1alpha1\nkind: Component\nmetadata:\n  name: " + name + "\nspec: {type: t.t}\n"
		_, err := component.Parse("f.yaml", strings.NewReader(text))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "f.yaml:4: metadata.name") {
			t.Errorf("name %q: %v", name, err)
		}
	}
	for _, name := range []string{"a", "Orders_2", "a.b-c", "...", "größe", "123", strings.Repeat("x", 253)} {
		parse(t, "apiVersion: a/v1alpha1\nkind: Component\nmetadata:\n  name: "+name+"\nspec: {type: t.t}\n")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("\ufeff---\r\nkind: Component\r\n---\n- [{a: &x *x}]\n"))
	f.Add([]byte("apiVersion: a/v1alpha1\nkind: Configuration\nmetadata: &m {name: x, <<: *m}\n"))
	f.Add([]byte("apiVersion: a/v1alpha1\nkind: Component\nmetadata: {name: x}\nspec: {type: t, metadata: [{name: " +
		"a, value: !!int \"x\"}]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := component.Parse("f.yaml", strings.NewReader(string(data)))
		if err != nil {
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "f.yaml") {
				t.Fatalf("an error without code or place: %v", err)
			}
			return
		}
		for _, doc := range file.Documents {
			if doc.Name == "" || doc.Pos.Line < 1 || doc.Body == nil ||
				(doc.Component != nil) != (doc.Kind == component.KindComponent) {
				t.Fatalf("an incomplete document: %+v", doc)
			}
			if doc.Component == nil || doc.Err != nil {
				continue
			}
			if doc.Component.Type == "" || doc.Component.InitTimeout <= 0 {
				t.Fatalf("an incomplete component: %+v", doc.Component)
			}
			for _, item := range doc.Component.Metadata {
				if item.Name == "" || item.Pos.Line < 1 {
					t.Fatalf("an incomplete item: %+v", item)
				}
			}
		}
	})
}
