package cli

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
)

// TestParseRunFile_RefusesASecondDocument checks that no application of a run file is ignored.
func TestParseRunFile_RefusesASecondDocument(t *testing.T) {
	const one = "version: 1\napps:\n- appID: a\n  command: [\"true\"]\n"
	if apps, err := parseRunFile("run.yaml", []byte("---\n"+one+"...\n")); err != nil || len(apps) != 1 {
		t.Errorf("one document: %d applications, %v", len(apps), err)
	}
	for _, second := range []string{strings.ReplaceAll(one, "appID: a", "appID: b"), "{"} {
		_, err := parseRunFile("run.yaml", []byte(one+"---\n"+second))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "run.yaml has a second document") {
			t.Errorf("%q after the first document: %v", second, err)
		}
	}
}
