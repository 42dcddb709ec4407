package component_test

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/component"
)

func TestExpandEnv_ReplacesVariablesInValues(t *testing.T) {
	const text = `apiVersion: dapr.io/v1alpha1
kind: Configuration
metadata: {name: c}
spec:
  plain: $HOST:4317
  flag: ${ON}
  quoted: "${ON}"
  $HOST: key
  list: [a, "${HOST}"]
  none: x${NONE}y
  reserved: $DAPR_API_TOKEN
`
	file, err := component.Parse("c.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	doc := file.Documents[0]
	problems := doc.ExpandEnv(func(name string) (string, bool) {
		value, ok := map[string]string{"HOST": "a.example", "ON": "true", "DAPR_API_TOKEN": "t0ken"}[name]
		return value, ok
	})
	out, err := yaml.Marshal(doc.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"plain: a.example:4317", "flag: true", `quoted: "true"`, "$HOST: key",
		`[a, "a.example"]`, "none: xy", "reserved: ${DAPR_API_TOKEN}"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if len(problems) != 2 || !strings.Contains(problems[0].String(), "c.yaml:10: ") ||
		!strings.Contains(problems[0].String(), "NONE") || !strings.Contains(problems[1].String(), "DAPR_API_TOKEN") {
		t.Errorf("problems %v", problems)
	}
}
