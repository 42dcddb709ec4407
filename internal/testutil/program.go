package testutil

import (
	"os"
	"os/exec"
	"testing"
)

// Program returns the path of a program that a test starts. If the environment variable with the name variable is set,
// Program returns its value. Otherwise it searches the PATH for a program with the given name. If there is none, it
// skips the test. The message then suggests the Debian package with the name of the program, so this package must
// exist.
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
