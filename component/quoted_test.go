package component_test

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

const quotedFile = `apiVersion: quorate.dev/v1alpha1
kind: Component
metadata:
  name: c
spec:
  type: state.example
  metadata:
  - name: port
    value: VALUE
`

func checkQuoted(t *testing.T, value string) error {
	t.Helper()
	file, err := component.Parse("c.yaml", strings.NewReader(strings.Replace(quotedFile, "VALUE", value, 1)))
	if err != nil {
		t.Fatal(err)
	}
	spec := file.Documents[0].Component
	fields := []component.Field{{Name: "port", Quoted: true}}
	_, _, err = spec.Unresolved().Check(spec.Pos, spec.Name, fields)
	resolved, failed := spec.Resolve(t.Context(), component.Sources{})
	if failed != nil {
		t.Fatal(failed)
	}
	if _, _, again := resolved.Check(spec.Pos, spec.Name, fields); fault.Text(again) != fault.Text(err) {
		t.Errorf("%s: after references were resolved the verdict is %v", value, again)
	}
	return err
}

func TestCheck_QuotedFieldRefusesNumber(t *testing.T) {
	for _, value := range []string{"8080", "true", "1.5"} {
		err := checkQuoted(t, value)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(),
			`c.yaml:8: component c: metadata port must be a string in quotes (write it as "`+value+`")`) {
			t.Errorf("%s: %v", value, err)
		}
	}
	for _, value := range []string{`"8080"`, "'8080'", "!!str 8080", "port"} {
		if err := checkQuoted(t, value); err != nil {
			t.Errorf("%s: %v", value, err)
		}
	}
}
