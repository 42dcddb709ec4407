package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/archtest/tree"
)

// TestMetrics_EveryNameHasARow reads the names of metrics from the code, where each is one string. The labels are
// compared by a test of node, which starts one.
func TestMetrics_EveryNameHasARow(t *testing.T) {
	names := regexp.MustCompile(`"(quorate_[a-z0-9_]+)"`)
	rows := set(read(t, "docs/metrics.md"), regexp.MustCompile("(?m)^\\| `(quorate_[a-z0-9_]+)` \\|"))
	others := map[string]bool{"quorate_cluster": true, "quorate_powercut": true} // a kind of token, and a build tag
	found := 0
	for _, file := range tree.GoFiles(files(t)) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for name := range set(read(t, file), names) {
			found++
			if !rows[name] && !others[name] {
				t.Errorf("%s declares the metric %s: add a row for it to docs/metrics.md", file, name)
			}
		}
	}
	if found < 80 {
		t.Errorf("found only %d names in the code", found)
	}
}

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
