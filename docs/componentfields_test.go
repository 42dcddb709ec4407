package docs_test

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/component"
)

// resourceField is a field of a resource: the same document without and with it.
type resourceField struct{ name, without, with string }

// resource is a kind of documents whose fields a section of dapr-compatibility.md lists.
type resource struct {
	section string
	fields  []resourceField
	// mappings are documents with an unknown field, by the names before the fields of that mapping.
	mappings map[string]string
}

const unknown = "zzzzzzzz: 1"

// insert puts text at the end of the line of a document that begins with start.
func insert(doc, start, text string) string {
	return regexp.MustCompile(`(?m)^`+start+`.*\}$`).ReplaceAllStringFunc(doc, func(line string) string {
		return strings.TrimSuffix(line, "}") + ", " + text + "}"
	})
}

// headerFields are the fields that all documents have.
func headerFields(base string) []resourceField {
	out := []resourceField{
		{"kind", base, regexp.MustCompile("kind: .*").ReplaceAllString(base, "kind: Other")}, // ignored as a whole
		{"apiVersion", base, strings.Replace(base, "dapr.io/v1alpha1", "quorate.dev/v1alpha1", 1)},
		{"metadata.name", base, strings.Replace(base, "name: n}", "name: other}", 1)},
		{"metadata.namespace", base, insert(base, "metadata:", "namespace: ns")},
		{"scopes", base, base + "scopes: [a]\n"},
		{"status", base, base + "status: {ready: true}\n"},
		{"auth.secretStore", base, base + "auth: {secretStore: s}\n"},
	}
	for _, name := range []string{"labels", "annotations", "creationTimestamp", "deletionGracePeriodSeconds",
		"deletionTimestamp", "finalizers", "generateName", "generation", "managedFields", "ownerReferences",
		"resourceVersion", "selfLink", "uid"} {
		out = append(out, resourceField{"metadata." + name, base, insert(base, "metadata:", name+": {a: b}")})
	}
	return out
}

func resources() []resource {
	const component = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata: {name: n}\n" +
		"spec: {type: state.redis, metadata: [ITEM]}\n"
	const endpoint = "apiVersion: dapr.io/v1alpha1\nkind: HTTPEndpoint\nmetadata: {name: n}\n" +
		"spec: {baseUrl: \"https://a.example\", headers: [ITEM]}\n"
	item := func(doc, text string) string { return strings.Replace(doc, "ITEM", text, 1) }
	value, secret := "{name: a, value: b}", "{name: a, secretKeyRef: {name: s}}"
	named := func(list, doc string) []resourceField {
		return []resourceField{
			{list + ".name", item(doc, value), item(doc, "{name: other, value: b}")},
			{list + ".value", item(doc, value), item(doc, "{name: a, value: c}")},
			{list + ".secretKeyRef.name", item(doc, value), item(doc, secret)},
			{list + ".secretKeyRef.key", item(doc, secret), item(doc, "{name: a, secretKeyRef: {name: s, key: k}}")},
			{list + ".envRef", item(doc, value), item(doc, "{name: a, envRef: HOME}")},
		}
	}
	c, e := item(component, value), item(endpoint, value)
	tls := func(text string) string { return insert(e, "spec:", "clientTLS: {"+text+"}") }
	return []resource{
		{section: "Fields of a component",
			fields: slices.Concat(headerFields(c), named("spec.metadata[]", component), []resourceField{
				{"spec.type", c, strings.Replace(c, "state.redis", "state.mongodb", 1)},
				{"spec.version", c, insert(c, "spec:", "version: v2")},
				{"spec.ignoreErrors", c, insert(c, "spec:", "ignoreErrors: true")},
				{"spec.initTimeout", c, insert(c, "spec:", "initTimeout: 1m")},
			}),
			mappings: map[string]string{
				"": c + unknown + "\n", "metadata.": insert(c, "metadata:", unknown),
				"spec.": insert(c, "spec:", unknown), "auth.": c + "auth: {" + unknown + "}\n",
				"spec.metadata[].":              item(component, "{name: a, value: b, "+unknown+"}"),
				"spec.metadata[].secretKeyRef.": item(component, "{name: a, secretKeyRef: {name: s, "+unknown+"}}"),
			}},
		{section: "Fields of an HTTPEndpoint",
			fields: slices.Concat(headerFields(e), named("spec.headers[]", endpoint), []resourceField{
				{"spec.version", e, insert(e, "spec:", "version: v1")},
				{"spec.baseUrl", e, strings.Replace(e, "a.example", "b.example", 1)},
				{"spec.baseURL", e, strings.Replace(strings.Replace(e, "baseUrl", "baseURL", 1), "a.", "b.", 1)},
				{"spec.clientTLS.rootCA", e, tls("rootCA: {value: a}")},
				{"spec.clientTLS.certificate", e, tls("certificate: {secretKeyRef: {name: s}}")},
				{"spec.clientTLS.privateKey", e, tls("privateKey: {envRef: HOME}")},
				{"spec.clientTLS.renegotiation", e, tls("renegotiation: OnceAsClient")},
			}),
			mappings: map[string]string{
				"": e + unknown + "\n", "metadata.": insert(e, "metadata:", unknown),
				"spec.": insert(e, "spec:", unknown), "auth.": e + "auth: {" + unknown + "}\n",
				"spec.headers[].":              item(endpoint, "{name: a, value: b, "+unknown+"}"),
				"spec.headers[].secretKeyRef.": item(endpoint, "{name: a, secretKeyRef: {name: s, "+unknown+"}}"),
				"spec.clientTLS.":              tls(unknown),
			}},
	}
}

// TestCompatibility_FieldsOfResources checks each row of the tables about components and HTTPEndpoints: a field that
// works changes what is read, and an ignored one changes nothing. Every field that the code knows has a row.
func TestCompatibility_FieldsOfResources(t *testing.T) {
	page := source(t, "dapr-compatibility.md")
	for _, r := range resources() {
		listed := rows(t, page, r.section)
		for _, f := range r.fields {
			want, found := listed[f.name]
			before, err := effectOf(t, f.without)
			if err != nil {
				t.Fatalf("%s: %v\n%s", f.name, err, f.without)
			}
			after, err := effectOf(t, f.with)
			got := "works"
			switch {
			case err != nil:
				got = "refused"
			case same(before, after):
				got = "ignored"
			}
			if !found || want != got {
				t.Errorf("%s: %s is listed as %q, and is %s (%v)\n%s", r.section, f.name, want, got, err, f.with)
			}
			delete(listed, f.name)
		}
		if len(listed) > 0 {
			t.Errorf("%s: rows without a test: %q", r.section, slices.Sorted(maps.Keys(listed)))
		}
		for prefix, doc := range r.mappings {
			for _, name := range knownFields(t, doc) {
				tested := func(f resourceField) bool {
					return f.name == prefix+name || strings.HasPrefix(f.name, prefix+name+".") ||
						strings.HasPrefix(f.name, prefix+name+"[]")
				}
				if !slices.ContainsFunc(r.fields, tested) {
					t.Errorf("%s: the code knows %s%s, which has no row", r.section, prefix, name)
				}
			}
		}
	}
}

// rows returns the fields of a table and what Quorate does with them. A row may name several fields.
func rows(t *testing.T, page, section string) map[string]string {
	t.Helper()
	_, page, found := strings.Cut(page, "## "+section+"\n")
	if !found {
		t.Fatalf("the page has no section %s", section)
	}
	table, _, _ := strings.Cut(page, "\n\nThe metadata fields")
	table, _, _ = strings.Cut(table, "\n## ")
	out := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\| (\\w+) \\|").FindAllStringSubmatch(table, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(m[1], -1) {
			out[name[1]] = m[2]
		}
	}
	return out
}

// effectOf returns what takes effect of a document.
func effectOf(t *testing.T, text string) (any, error) {
	t.Helper()
	f, err := component.Parse("c.yaml", strings.NewReader(text))
	if err != nil || len(f.Documents) == 0 {
		return nil, err
	}
	d := f.Documents[0]
	if d.Kind != component.KindHTTPEndpoint {
		return d, d.Err
	}
	e, err := component.ParseHTTPEndpoint(d)
	return []any{d, e}, err
}

func same(a, b any) bool {
	return cmp.Equal(a, b, cmp.Exporter(func(reflect.Type) bool { return true }), cmpopts.IgnoreTypes(component.Pos{},
		&yaml.Node{}), cmpopts.IgnoreFields(component.Item{}, "Bare"))
}

// knownFields returns the fields that an error about an unknown one lists.
func knownFields(t *testing.T, doc string) []string {
	t.Helper()
	_, err := effectOf(t, doc)
	if err == nil {
		t.Fatalf("an unknown field is no error:\n%s", doc)
	}
	m := regexp.MustCompile(`unknown field "zzzzzzzz".*\(known: ([^)]*)\)`).FindStringSubmatch(fmt.Sprintf("%+v", err))
	if m == nil {
		t.Fatalf("the error does not list the known fields: %+v\n%s", err, doc)
	}
	return strings.Split(m[1], ", ")
}
