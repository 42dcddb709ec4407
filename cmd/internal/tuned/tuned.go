// Package tuned is the whole quorate command with what nobody can set on the real one:
// sizes and times that let a test see in seconds what else takes minutes, a wall clock that
// can be turned, and an end at any step of the store's disk work.
//
// It owns that tuning and the control files through which a test turns the clock or orders
// the end. It must never change anything else of the product: what tests find in it, they
// find in the real program. One goroutine, which reads the control files, lives as long as
// the process.
package tuned

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorate/quorate/cmd/internal/cli"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

// Variables of the environment.
const (
	Env     = "QUORATE_FAULT_TUNING"  // holds a Tuning as JSON: the program is to be the quorate command
	Control = "QUORATE_FAULT_CONTROL" // directory of the control files; may be missing
)

// Control files.
const (
	ClockFile = "clock" // seconds by which the wall clock is wrong
	CrashFile = "crash" // the step of disk work, counted from now, at which the process is killed; 0 = none
)

// Tuning is what differs from the real program. The zero value differs in nothing.
type Tuning struct {
	Bounds group.Bounds
	Timing group.Timing
	Limits placement.Limits
}

// Quick are the default time-outs of Raft with a policy of placement that does not wait.
func Quick() Tuning {
	return Tuning{Limits: placement.Limits{Stable: 200 * time.Millisecond, Settle: 2 * time.Second}}
}

// Text is a tuning as Env holds it.
func (t Tuning) Text() string {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // numbers only
	}
	return string(text)
}

// Run is the quorate command, tuned by text. It returns the exit code.
func Run(text string) int {
	var t Tuning
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		fmt.Fprintln(os.Stderr, Env+": "+err.Error())
		return 2
	}
	c := new(controls)
	if dir := os.Getenv(Control); dir != "" {
		c.read(dir)
		go c.follow(dir)
	}
	m := cli.Main{
		Args: os.Args[1:], Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Version: cli.Version{Version: "test"},
		Open: func(ctx context.Context, settings node.Config, log *slog.Logger) (cli.Node, error) {
			settings.Cluster.Bounds, settings.Cluster.Timing, settings.Cluster.Limits = t.Bounds, t.Timing, t.Limits
			n, err := node.Open(ctx, settings, node.Deps{Logger: log, Env: os.LookupEnv, Exit: os.Exit, Step: c.step, Fatal: func(err error) {
				log.Error("this node cannot go on and ends now; nothing acknowledged is lost", "error", err)
				os.Exit(1)
			}})
			if err != nil {
				return nil, err
			}
			return n, nil
		},
		Signals: func() (<-chan os.Signal, func()) {
			c := make(chan os.Signal, 2)
			signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
			return c, func() { signal.Stop(c) }
		},
	}
	return m.Run(context.Background())
}

// controls are what a test orders while the process runs. Safe for concurrent use.
type controls struct {
	crash atomic.Int64 // steps left until the end; 0 = none ordered
	last  string       // what the crash file said; of the reader alone
}

// follow reads the control files again and again.
func (c *controls) follow(dir string) {
	for range time.Tick(20 * time.Millisecond) {
		c.read(dir)
	}
}

func (c *controls) read(dir string) {
	turnClock(time.Duration(number(dir, ClockFile)) * time.Second)
	text, _ := os.ReadFile(filepath.Join(dir, CrashFile)) // there may be none
	if now := string(text); now != c.last {
		c.last = now
		c.crash.Store(number(dir, CrashFile))
	}
}

// number is what a control file says; 0 if there is none.
func number(dir, name string) int64 {
	text, _ := os.ReadFile(filepath.Join(dir, name))
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// step ends the process as kill -9 does once its step has come.
func (c *controls) step(string) {
	for {
		left := c.crash.Load()
		if left <= 0 {
			return
		}
		if !c.crash.CompareAndSwap(left, left-1) {
			continue
		}
		if left == 1 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // nothing more is done
		}
		return
	}
}
