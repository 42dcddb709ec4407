package console

import (
	"testing"

	apihttp "github.com/quorate/quorate/api/http"
)

// Operations with the same body share its description in the components of the document.
func TestParseOpenAPI_ResolvesSharedBodies(t *testing.T) {
	paths, err := parseOpenAPI(apihttp.OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]string{}
	for _, d := range paths {
		bodies[d.verb+" "+d.path] = d.body
		for _, a := range d.answers {
			if a[1] == "" {
				t.Errorf("%s %s: the answer %s has no description", d.verb, d.path, a[0])
			}
		}
	}
	for operation, want := range map[string]string{
		"POST /v1.0/state/{store}":      "application/json, list of Item",
		"PUT /v1.0/state/{store}":       "application/json, list of Item",
		"POST /v1.0-alpha1/jobs/{key}":  bodies["POST /v1.0/jobs/{key}"],
		"GET /v1.0/state/{store}/{key}": "",
	} {
		if got := bodies[operation]; got != want {
			t.Errorf("%s: the body is %q, want %q", operation, got, want)
		}
	}
	if bodies["POST /v1.0/jobs/{key}"] == "" {
		t.Error("a job has no body")
	}
}
