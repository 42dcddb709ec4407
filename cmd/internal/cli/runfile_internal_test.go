package cli

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
)

// TestParseRunFile_RefusesASecondDocument checks that no application of a run file is ignored.
func TestParseRunFile_RefusesASecondDocument(t *testing.T) {
	const one = "version: 1\napps:\n- appID: a\n  command: [\"true\"]\n"
	for _, end := range []string{"...\n", "---\n", "---\n# empty\n---\n"} {
		if apps, err := parseRunFile("run.yaml", []byte("---\n"+one+end)); err != nil || len(apps) != 1 {
			t.Errorf("one document that ends with %q: %d applications, %v", end, len(apps), err)
		}
	}
	two := strings.ReplaceAll(one, "appID: a", "appID: b")
	for _, second := range []string{two, "---\n" + two, "{"} {
		_, err := parseRunFile("run.yaml", []byte(one+"---\n"+second))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "run.yaml has a second document") {
			t.Errorf("%q after the first document: %v", second, err)
		}
	}
}
