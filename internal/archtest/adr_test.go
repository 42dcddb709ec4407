package archtest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestADRs_HaveUniqueNumbersAndAreListed checks that no two pages have the same number, and that the index lists every
// page.
func TestADRs_HaveUniqueNumbersAndAreListed(t *testing.T) {
	pages, err := filepath.Glob("../../docs/adr/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	index, err := os.ReadFile("../../docs/adr/README.md")
	if err != nil {
		t.Fatal(err)
	}
	had := map[int]string{}
	for _, page := range pages {
		if filepath.Base(page) == "README.md" {
			continue
		}
		var n int
		if _, err := fmt.Sscanf(filepath.Base(page), "%04d-", &n); err != nil {
			t.Errorf("%s does not begin with a number of four digits", page)
			continue
		}
		if other, twice := had[n]; twice {
			t.Errorf("%s and %s have the same number", other, page)
		}
		had[n] = page
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		title, found := strings.CutPrefix(string(text), fmt.Sprintf("# %d. ", n))
		if !found {
			t.Errorf("%s does not begin with its number, %q", page, fmt.Sprintf("# %d. ", n))
			continue
		}
		title, _, _ = strings.Cut(title, "\n")
		row := fmt.Sprintf("| %d | [%s](%s) |", n, title, filepath.Base(page))
		if !strings.Contains(string(index), row) {
			t.Errorf("docs/adr/README.md does not have the row %q", row)
		}
	}
}
