package appcmd

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/hostshare"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// announced records a process for each of the applications in a new directory, and returns the directory.
func announced(t *testing.T, apps ...string) (runtimeDir string) {
	t.Helper()
	runtimeDir = filepath.Join(t.TempDir(), "run")
	for _, app := range apps {
		p, err := Announce(runtimeDir, hostshare.Note{Apps: []string{app}, PID: os.Getpid(),
			Run: &hostshare.Run{Started: time.Now()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
	}
	return runtimeDir
}

func TestNewestLog_OfRunsInAnyOrder(t *testing.T) {
	t.Parallel()
	start := time.Now()
	run := func(log string, after time.Duration) hostshare.Note {
		return hostshare.Note{Run: &hostshare.Run{Log: log, Started: start.Add(after)}}
	}
	notes := []hostshare.Note{run("old", 0), run("new", 2), run("between", 1), run("", 3)}
	if got := newestLog(notes); got != "new" {
		t.Errorf("%q", got)
	}
	if got := newestLog(notes[3:]); got != "" {
		t.Errorf("%q", got)
	}
}

func TestFind_SuggestsOrLists(t *testing.T) {
	t.Parallel()
	notes, err := list(announced(t, "orders", "payments"))
	if err != nil || len(notes) != 2 || name(notes[0]) != "orders" {
		t.Fatalf("%+v %v", notes, err)
	}
	if found, err := find(notes, "payments"); err != nil || len(found) != 1 {
		t.Errorf("%+v %v", found, err)
	}
	for app, hint := range map[string]string{"order": "did you mean orders?",
		"x": "on this machine run: orders, payments"} {
		if _, err := find(notes, app); !fault.Is(err, fault.NotFound) || !strings.Contains(fault.HintOf(err), hint) {
			t.Errorf("%s: %v", app, err)
		}
	}
	if _, err := find(nil, "x"); !strings.Contains(fault.HintOf(err), "none runs on this machine") {
		t.Errorf("%v", err)
	}
}

// TestOutput_KeepsTheLastLines writes from two goroutines, as for the two outputs of an application. No line must be
// lost while the file is replaced.
func TestOutput_KeepsTheLastLines(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	o, err := KeepOutput(announced(t), state, "a/b")
	if err != nil {
		t.Fatal(err)
	}
	line := append(bytes.Repeat([]byte("x"), 64<<10-1), '\n')
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 3 * maxLog / len(line) / 4 { // 1.5 files in all
				_, _ = o.Write(line)
			}
		})
	}
	all.Wait()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(o.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out bytes.Buffer
	if err := printOutput(&out, f, -1); err != nil {
		t.Fatal(err)
	}
	if want := 2 * (3 * maxLog / len(line) / 4) * len(line); out.Len() != want {
		t.Errorf("%d bytes of %d are kept", out.Len(), want)
	}
	if info, err := f.Stat(); err != nil || info.Size() > maxLog+int64(len(line)) {
		t.Errorf("%v %v", info, err)
	}
	if filepath.Dir(o.Path()) != filepath.Join(state, "quorate", "logs") {
		t.Errorf("the id of the application led out of the directory: %s", o.Path())
	}
}

func TestOutput_EndedRunsAreRemovedExceptTheNewest(t *testing.T) {
	t.Parallel()
	state, dir := t.TempDir(), announced(t)
	for i, at := range []time.Duration{3, 2, 1} {
		path := logPath(state, "shop", 1000+i)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("line\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(-at * time.Hour)
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	o, err := KeepOutput(dir, state, "shop")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.Close() }()
	got := outputs(filepath.Dir(o.Path()), "shop")
	if len(got) != 2 || got[0] != logPath(state, "shop", 1002) || got[1] != o.Path() {
		t.Errorf("%q", got)
	}
	if more := outputs(filepath.Dir(o.Path()), "sho"); len(more) != 0 {
		t.Errorf("the files of another application: %q", more)
	}
}

// TestPrintOutput_WhileTheFileIsReplaced replaces the file after quorate logs has opened it. No line must be printed
// twice.
func TestPrintOutput_WhileTheFileIsReplaced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.log")
	if err := os.WriteFile(path, []byte("1\n2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+oldSuffix); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printOutput(&out, f, -1); err != nil || out.String() != "1\n2\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := followOutput(t.Context(), &out, f, func() bool { return false }); err != nil {
		t.Error(err)
	}
	if out.String() != "1\n2\n3\n" {
		t.Errorf("followed to the end: %q", out.String())
	}
}

// rotating is a buffer that calls rotate when it has read a file to its end.
type rotating struct {
	bytes.Buffer
	rotate func()
}

func (r *rotating) ReadFrom(in io.Reader) (int64, error) {
	n, err := r.Buffer.ReadFrom(in)
	if rotate := r.rotate; rotate != nil {
		r.rotate = nil
		rotate()
	}
	return n, err
}

// The application writes its last line to a file, and the next line to the replacement, while quorate logs pauses.
func TestFollowOutput_ReadsReplacedFileToItsEnd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.log")
	write := func(text string) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Error(err)
		}
	}
	write("1\n")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	out := &rotating{rotate: func() {
		write("2\n")
		if err := os.Rename(path, path+oldSuffix); err != nil {
			t.Error(err)
		}
		write("3\n")
	}}
	err = followOutput(t.Context(), out, f, func() bool { return false })
	if err != nil || out.String() != "1\n2\n3\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestPrintOutput_Tail(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.log")
	for p, text := range map[string]string{path + oldSuffix: "1\n2\n", path: "3\n4"} {
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for tail, want := range map[int]string{-1: "1\n2\n3\n4", 0: "", 1: "4", 3: "2\n3\n4", 9: "1\n2\n3\n4"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := printOutput(&out, f, tail); err != nil || out.String() != want {
			t.Errorf("%d: %q %v", tail, out.String(), err)
		}
		_ = f.Close()
	}
}

func TestPrintOutput_FailsIfTheFileCannotBeRead(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "x.log"))
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	for _, tail := range []int{-1, 3} {
		if err := printOutput(io.Discard, f, tail); err == nil {
			t.Errorf("tail %d: no error", tail)
		}
	}
}
