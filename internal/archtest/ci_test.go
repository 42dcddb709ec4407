package archtest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCI_RunsTestsThatExist checks that each -run in the CI scripts names a test. If no test has that name, go test
// passes without running anything.
func TestCI_RunsTestsThatExist(t *testing.T) {
	root := filepath.Join("..", "..")
	var scripts []byte
	for _, name := range []string{"run", "verify", "steps"} {
		script, err := os.ReadFile(filepath.Join(root, ".ci", name))
		if err != nil {
			t.Fatal(err)
		}
		scripts = append(scripts, script...)
	}
	steps := regexp.MustCompile(`-run (\w+) \./(\S+?)[\s)|]`).FindAllStringSubmatch(string(scripts)+"\n", -1)
	if len(steps) < 6 {
		t.Fatalf("found %d steps with -run in .ci", len(steps))
	}
	for _, s := range steps {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(s[2]), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(s[1], "Test")
		declared := regexp.MustCompile(`(?m)^func Test\w*` + regexp.QuoteMeta(name))
		found := false
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			found = found || declared.Match(text)
		}
		if !found {
			t.Errorf(".ci has -run %s ./%s, and no test there has such a name", s[1], s[2])
		}
	}
}
