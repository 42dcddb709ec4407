package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/testutil"
)

func TestDebugBundle_IsSavedToNewFile(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	got := c.run("debug", "bundle", "--seconds", "2", "--output", file)
	if got.code != 0 || strings.TrimSpace(got.stdout) != file {
		t.Fatalf("%+v", got)
	}
	text, err := os.ReadFile(file)
	if err != nil || string(text) != "bundle of 2s" {
		t.Errorf("%q, %v", text, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if again := c.run("debug", "bundle", "--output", file); again.code == 0 ||
		!strings.Contains(again.stderr, "--output") {
		t.Errorf("an existing file is replaced: %+v", again)
	}
	if wrong := c.run("debug", "bundle", "--seconds", "0"); wrong.code != 2 {
		t.Errorf("0 seconds: %+v", wrong)
	}
}

func TestConsole_PrintsTheLinkAlone(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	got := c.run("console", "--print")
	if got.code != 0 || got.stdout != "http://127.0.0.1:9091/login?token=TOKEN\n" ||
		!strings.Contains(got.stderr, "It signs one browser in, once, until ") {
		t.Errorf("%+v", got)
	}
	if got := c.run("console", "--json"); !strings.Contains(got.stdout, `"expires": "2023-11-14T22:13:20Z"`) {
		t.Errorf("%+v", got)
	}
}

func TestDebugBundle_LeavesNothingWhenInterrupted(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	must(t, os.WriteFile(filepath.Join(c.dataDir(), "hangs"), nil, 0o600))
	dir := t.TempDir()
	file := filepath.Join(dir, "b.tar.gz")
	var stdout, stderr testutil.Output
	m := c.main(&stdout, &stderr, []string{"debug", "bundle", "--output", file})
	signals := make(chan os.Signal, 1)
	m.Signals = func() (<-chan os.Signal, func()) { return signals, func() {} }
	code := make(chan int, 1)
	go func() { code <- m.Run(t.Context()) }()
	eventually(t, func() bool { return len(left(t, dir)) == 1 })
	if _, err := os.Stat(file); err == nil {
		t.Error("an incomplete bundle has the name of the bundle")
	}
	signals <- os.Interrupt
	if got := <-code; got != 1 || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("code %d: %s", got, stderr.String())
	}
	if got := left(t, dir); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
}
