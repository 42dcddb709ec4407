package testutil

import (
	"os"
	"os/exec"
	"testing"
)

// Program returns the path of a program that a test starts. The parameter variable is the name of an environment
// variable. If this variable is set, Program returns its value. Otherwise it returns the path of the program with
// the given name on the PATH. If there is no such program, the test is skipped. In Debian, the package of the
// program must have the same name.
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
