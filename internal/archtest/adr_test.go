package archtest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestADRs_HaveUniqueNumbers: a page is cited by its number.
func TestADRs_HaveUniqueNumbers(t *testing.T) {
	pages, err := filepath.Glob("../../docs/adr/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	had := map[int]string{}
	for _, page := range pages {
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
		if want := fmt.Sprintf("# %d. ", n); !strings.HasPrefix(string(text), want) {
			t.Errorf("%s does not begin with %q", page, want)
		}
	}
}
