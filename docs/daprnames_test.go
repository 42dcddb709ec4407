package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestMetrics_ListsEveryDaprName compares metrics.md with the metrics that daprNames exports.
func TestMetrics_ListsEveryDaprName(t *testing.T) {
	code, err := filepath.Glob(filepath.Join(root, "internal", "daprmetrics", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`"(dapr_[a-z_]+)"`)
	recorded := map[string]bool{}
	for _, file := range code {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for name := range set(string(text), names) {
			recorded[name] = true
		}
	}
	page := set(read(t, "docs/metrics.md"), regexp.MustCompile("`(dapr_[a-z_]+)`"))
	for name := range recorded {
		if !page[name] {
			t.Errorf("docs/metrics.md does not list %s", name)
		}
	}
	for name := range page {
		if !recorded[name] {
			t.Errorf("docs/metrics.md lists %s, which the code does not record", name)
		}
	}
	if len(recorded) < 40 {
		t.Errorf("found only %d names in the code", len(recorded))
	}
}
