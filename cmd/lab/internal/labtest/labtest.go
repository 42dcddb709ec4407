// Package labtest builds programs of this module for the tests that start them.
//
// It owns the folder with the built programs. It has no goroutines.
package labtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

const module = "github.com/quorate/quorate/"

// Env is the name of an environment variable with the path of a lab program that is already built. If the variable is
// set, a Lab uses this program instead of building one.
const Env = "QUORATE_LAB_BINARY"

// Lab builds the program cmd/lab when a test needs it for the first time. All later tests use the same program. A Lab
// is safe for concurrent use.
type Lab struct {
	dir  string
	once func() (string, error)
}

// New returns a Lab for the tests of one package. The TestMain of that package calls Run.
func New() *Lab {
	l := new(Lab)
	l.once = sync.OnceValues(func() (string, error) {
		if given := os.Getenv(Env); given != "" {
			return filepath.Abs(given)
		}
		if l.dir == "" {
			return "", errors.New("labtest: TestMain does not call Run")
		}
		path := filepath.Join(l.dir, "lab")
		return path, build(path, "cmd/lab")
	})
	return l
}

// Run runs the tests of m, removes the programs that were built, and returns the exit code of the tests.
func (l *Lab) Run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "quorate-lab-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }() // in the temporary directory
	l.dir = dir
	return m.Run()
}

// Program returns the path of the program.
func (l *Lab) Program(t testing.TB) string {
	t.Helper()
	path, err := l.once()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Build builds a program of this module, such as cmd/quorate, and returns its path. The program is removed at the end
// of the test.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(pkg))
	if err := build(path, pkg); err != nil {
		t.Fatal(err)
	}
	return path
}

func build(path, pkg string, flags ...string) error {
	args := append(append([]string{"build"}, flags...), "-o", path, module+pkg)
	cmd := exec.Command("go", args...) //nolint:gosec,noctx // a package of this module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w: %s", pkg, err, out)
	}
	return nil
}

// BuildChanged is like Build, but replaces some source files. overlay is the path of a JSON file that lists them, in
// the format of go build -overlay.
func BuildChanged(t testing.TB, pkg, overlay string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(pkg))
	if err := build(path, pkg, "-overlay", overlay); err != nil {
		t.Fatal(err)
	}
	return path
}
