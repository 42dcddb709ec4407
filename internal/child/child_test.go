package child_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/internal/child"
	"github.com/quorate/quorate/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is a buffer that is safe for concurrent use.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func start(t *testing.T, script string) (*child.Process, *output) {
	t.Helper()
	out := &output{}
	p, err := child.Start(child.Options{Command: []string{"sh", "-c", script}, Env: append(os.Environ(), "WHO=me"),
		Prefix: "== APP == ", Stdout: out, Stderr: out})
	if err != nil {
		t.Fatal(err)
	}
	return p, out
}

func TestStart_PrefixesEveryLine(t *testing.T) {
	p, out := start(t, `echo "$WHO"; printf 'a\n\nb'; echo c >&2`) // the order of the two pipes is undefined
	<-p.Done()
	if p.Err() != nil {
		t.Error(p.Err())
	}
	for _, want := range []string{"== APP == me\n", "== APP == a\n", "== APP == \n", "== APP == b\n", "== APP == c\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in %q", want, out.String())
		}
	}
}

func TestWait_ExitCodeIsAnError(t *testing.T) {
	p, _ := start(t, "exit 3")
	<-p.Done()
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%v", err)
	}
}

func TestStop_EndsDescendants(t *testing.T) {
	p, out := start(t, `trap 'echo bye; exit 0' TERM; sh -c 'trap "echo inner; exit" TERM; echo up; `+
		`while :; do sleep 0.05; done' & while :; do sleep 0.05; done`)
	until(t, func() bool { return strings.Contains(out.String(), "up") })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.Stop(ctx, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if got := out.String(); !strings.Contains(got, "bye") || !strings.Contains(got, "inner") {
		t.Errorf("%q", got)
	}
}

// TestWait_DescendantThatKeepsTheOutputIsNotWaitedFor starts a descendant with a process group of its own. Such a
// process gets no signal, and keeps the output of the command open.
func TestWait_DescendantThatKeepsTheOutputIsNotWaitedFor(t *testing.T) {
	p, out := start(t, `setsid sh -c 'echo "pid $$"; exec sleep 600' & exit 0`)
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Error("the command has ended, and its process has not")
	}
	if err := p.Err(); err != nil {
		t.Errorf("the command ended with 0: %v", err)
	}
	var pid int
	if _, err := fmt.Sscanf(out.String(), "== APP == pid %d", &pid); err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	} else {
		t.Errorf("%q: %v", out, err)
	}
}

func TestStop_KillsACommandThatDoesNotEnd(t *testing.T) {
	p, out := start(t, `trap '' TERM; echo up; while :; do sleep 0.05; done`)
	until(t, func() bool { return strings.Contains(out.String(), "up") })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := p.Stop(ctx, syscall.SIGTERM); !fault.Is(err, fault.Timeout) {
		t.Errorf("%v", err)
	}
}

func TestRun_NamesAMissingProgram(t *testing.T) {
	_, err := child.Start(child.Options{Command: []string{"/no/such/program"}, Stdout: &output{}, Stderr: &output{}})
	if !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("%v", err)
	}
}

func until(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.After(time.Minute); !ok(); {
		select {
		case <-deadline:
			t.Fatal("it did not happen")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestStart_ReportsAThreadThatCannotBePrepared(t *testing.T) {
	prepared := 0
	o := child.Options{Command: []string{"sh", "-c", "exit 3"}, Stdout: &output{}, Stderr: &output{},
		Thread: func() error { prepared++; return os.ErrPermission }}
	if p, err := child.Start(o); !errors.Is(err, os.ErrPermission) || p != nil {
		t.Errorf("%v, %v", p, err)
	}
	o.Thread = func() error { prepared++; return nil }
	p, err := child.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	if <-p.Done(); p.ExitCode() != 3 || prepared != 2 {
		t.Errorf("code %d, prepared %d times", p.ExitCode(), prepared)
	}
}
