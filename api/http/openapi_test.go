package http

import (
	"encoding/json"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api/invoke"
)

// description is the part of the OpenAPI description that the tests check.
type description struct {
	OpenAPI    string `json:"openapi"`
	Paths      map[string]map[string]operation
	Components map[string]map[string]json.RawMessage
}

type operation struct {
	OperationID string
	Parameters  []struct {
		Ref string `json:"$ref"`
	}
	Responses map[string]struct {
		Description string
		Ref         string `json:"$ref"`
	}
	Security *[]any // an empty list = no token is needed
}

func readDescription(t *testing.T) description {
	t.Helper()
	var d description
	if err := json.Unmarshal(openAPI, &d); err != nil {
		t.Fatal(err)
	}
	if d.OpenAPI != "3.1.0" {
		t.Errorf("version %q", d.OpenAPI)
	}
	return d
}

// described returns the path of a route in the notation of the OpenAPI description, which has a name for the key.
func described(path string) string {
	rest, ok := strings.CutSuffix(path, "*")
	switch {
	case !ok:
		return path
	case rest == "/v1.0/invoke/":
		return rest + "{target}"
	}
	return rest + "{key}"
}

// allRoutes returns a Face with every block but without services, and the routes of the blocks.
func allRoutes(t *testing.T) (f *Face, routes []route) {
	t.Helper()
	c := Config{Invoke: &invoke.Service{}, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()}
	f, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range f.blocks(c) {
		routes = append(routes, b.routes()...)
	}
	return f, routes
}

func TestOpenAPI_HasExactlyTheRoutes(t *testing.T) {
	d := readDescription(t)
	want := map[string]bool{}
	_, routes := allRoutes(t)
	for _, r := range routes {
		list := strings.Fields(strings.ToLower(r.verbs))
		if r.verbs == anyVerb {
			list = []string{"get", "put", "post", "delete", "options", "head", "patch", "trace"}
		}
		for _, verb := range list {
			path := described(r.path)
			want[verb+" "+path] = true
			op, ok := d.Paths[path][verb]
			if !ok {
				t.Errorf("%s %s is not described: add it to paths in api/http/openapi.json", verb, path)
				continue
			}
			if open := op.Security != nil && len(*op.Security) == 0; open != r.open {
				t.Errorf("%s %s: needs no token: %v, described as %v", verb, path, r.open, open)
			}
		}
	}
	for path, ops := range d.Paths {
		for verb := range ops {
			if !want[verb+" "+path] {
				t.Errorf("%s %s is described, but is not an endpoint", verb, path)
			}
		}
	}
}

func TestOpenAPI_IsConsistent(t *testing.T) {
	d := readDescription(t)
	refs := regexp.MustCompile(`"\$ref": "#/components/([^/"]+)/([^"]+)"`)
	for _, m := range refs.FindAllStringSubmatch(string(openAPI), -1) {
		if d.Components[m[1]][m[2]] == nil {
			t.Errorf("nothing is at %s/%s", m[1], m[2])
		}
	}
	ids := map[string]bool{}
	for path, ops := range d.Paths {
		var wanted []string
		for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
			wanted = append(wanted, m[1])
		}
		slices.Sort(wanted)
		for verb, op := range ops {
			if ids[op.OperationID] || op.OperationID == "" {
				t.Errorf("%s %s: the id %q is taken or empty", verb, path, op.OperationID)
			}
			ids[op.OperationID] = true
			if got := d.inPath(t, op); !slices.Equal(got, wanted) {
				t.Errorf("%s %s: parameters of the path are %v", verb, path, got)
			}
			for status, r := range op.Responses {
				if name := strings.TrimPrefix(r.Ref, "#/components/responses/"); r.Ref != "" {
					if d.Components["responses"][name] == nil {
						t.Errorf("%s %s: %s refers to %s", verb, path, status, r.Ref)
					}
				} else if r.Description == "" {
					t.Errorf("%s %s: %s has no description", verb, path, status)
				}
			}
		}
	}
}

// inPath returns the names of the path parameters of an operation.
func (d description) inPath(t *testing.T, op operation) (out []string) {
	t.Helper()
	for _, p := range op.Parameters {
		var param struct{ Name, In string }
		if err := json.Unmarshal(d.Components["parameters"][p.Ref[strings.LastIndex(p.Ref, "/")+1:]],
			&param); err != nil {
			t.Fatalf("%s: %v", p.Ref, err)
		}
		if param.In == "path" {
			out = append(out, param.Name)
		}
	}
	slices.Sort(out)
	return out
}
