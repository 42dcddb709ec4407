// Command turnclock writes an overlay for the Go compiler that gives package time a wall
// clock that can be turned: time.SetWallShift. A build with it and the tag quorate_clock
// shows what the product does when somebody sets the clock of its machine. Nothing of the
// Go installation is changed.
//
//	turnclock DIR
//
// leaves DIR/time.go and DIR/overlay.json. It owns what is changed in that file, and refuses a
// Go whose file is another. It must never know of the product.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "turnclock: say the directory to write to")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "turnclock: "+err.Error())
		os.Exit(1)
	}
}

// What is changed in package time. The monotonic clock is left alone.
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

// turn is the text of time.go with a clock that can be turned.
func turn(text string) (string, error) {
	if n := strings.Count(text, reads); n != 1 {
		return "", fmt.Errorf("time.Now of this Go reads its clock in another way, %d places fit: adapt turnclock, or build with CLOCK=0", n)
	}
	return strings.Replace(text, reads, turns, 1) + added, nil
}
