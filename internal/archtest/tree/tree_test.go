package tree

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// write makes empty files below a folder.
func write(t *testing.T, root string, names ...string) {
	t.Helper()
	for _, name := range names {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNames_LeavesOutUntrackedFiles checks that files that a reader of the tutorials makes inside the clone, such as
// sdk/stock/main.go, are left out.
func TestNames_LeavesOutUntrackedFiles(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	for _, name := range []string{"GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"} { // a hook of git may run this test
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	root := t.TempDir()
	write(t, root, "go.mod", "api/a.go", "api/deleted.go", "docs/a.md", "sdk/stock/main.go", "shop.go")
	for _, args := range [][]string{{"init", "-q"}, {"add", "go.mod", "api", "docs"}} {
		if out, err := exec.Command("git", append([]string{"-C", root}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v: %s", args, err, out)
		}
	}
	if err := os.Remove(filepath.Join(root, "api", "deleted.go")); err != nil {
		t.Fatal(err)
	}
	got, err := Names(root)
	if want := []string{"api/a.go", "docs/a.md", "go.mod"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

func TestNames_WithoutGitAreAllFilesExceptBin(t *testing.T) {
	root := t.TempDir()
	write(t, root, "go.mod", "api/a.go", "bin/quorate", "bin/dist/a.md", "docs/a.md")
	got, err := Names(root)
	if want := []string{"api/a.go", "docs/a.md", "go.mod"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

func TestNames_OfUnreadableCheckoutAreAllFiles(t *testing.T) {
	root := t.TempDir()
	write(t, root, "go.mod", ".git") // git refuses such a file
	got, err := Names(root)
	if want := []string{".git", "go.mod"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

func TestGoFiles_LeavesOutDataAndNestedModules(t *testing.T) {
	got := GoFiles([]string{"go.mod", "main.go", "api/a.go", "api/testdata/b.go", "_old/c.go", ".ci/d.go", "docs/a.md",
		"internal/tools/go.mod", "internal/tools/e.go", "internal/toolsx/f.go"})
	if want := []string{"main.go", "api/a.go", "internal/toolsx/f.go"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
