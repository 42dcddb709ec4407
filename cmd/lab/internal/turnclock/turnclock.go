// Package turnclock writes an overlay for the Go compiler, so that tests can shift the wall clock of a program. The
// overlay adds the function time.SetWallShift, which shifts the clock as if the clock of the machine were set. A
// program has this function if it is built with the overlay and the tag quorate_clock. The Go installation does not
// change.
//
//	lab turn-clock DIR
//
// This command writes DIR/time.go and DIR/overlay.json. The package owns the changes that DIR/time.go makes to package
// time. It refuses a version of Go whose time.go it does not recognize.
package turnclock

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Command returns a function that writes the overlay to a directory. The directory is the only argument of the
// subcommand, which has no flags.
func Command(f *flag.FlagSet) func(context.Context) error {
	return func(context.Context) error {
		if f.NArg() != 1 {
			return errors.New("name the directory to write to")
		}
		return write(f.Arg(0))
	}
}

// The changes in package time. The monotonic clock is not changed.
const (
	reads = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {"
	turns = "\tsec, nsec, mono := runtimeNow()\n\tsec += wallShift\n\tif mono == 0 {"
	added = `
// wallShift is by how many seconds the wall clock is wrong.
var wallShift int64

// SetWallShift turns the wall clock, for tests.
func SetWallShift(seconds int64) { wallShift = seconds }
`
)

func write(dir string) error {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(original) //nolint:gosec // of the Go installation
	if err != nil {
		return err
	}
	changed, err := turn(string(text))
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	file := filepath.Join(dir, "time.go")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: file}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600)
}

// turn returns the given source code of time.go with changes that let a program shift the wall clock. It returns an
// error if the source code does not have the expected form.
func turn(text string) (string, error) {
	if n := strings.Count(text, reads); n != 1 {
		return "", fmt.Errorf("time.Now of this Go version reads its clock differently, %d places match: adapt "+
			"turnclock, or build with CLOCK=0", n)
	}
	return strings.Replace(text, reads, turns, 1) + added, nil
}
