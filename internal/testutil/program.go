package testutil

import (
	"os"
	"os/exec"
	"testing"
)

// Program returns the path of a program that a test starts. The environment variable with the given name has precedence
// over the PATH. If the program is not found, Program skips the test, and suggests the Debian package with the name of
// the program. So there must be such a package.
func Program(t testing.TB, variable, name string) string {
	t.Helper()
	if path := os.Getenv(variable); path != "" {
		return path
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (Debian: %s), and %s is not set", name, name, variable)
	}
	return path
}
